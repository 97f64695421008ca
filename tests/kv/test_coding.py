"""Coded rows: the basis, the steps and the bits are what the recipe says, and what blocks hold."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from gossamer.kv import BlockStore, Calibration, Coded, KVConfig, KVShape, Side
from gossamer.kv.coded_basis import NORMAL_ERROR, SCALES, STEP_BITS, CodedBasis
from gossamer.kv.coding import (
    CENTRED,
    Rows,
    Sensitivity,
    best_steps,
    clipped,
    coded_basis,
    importance,
    row_scale,
)
from gossamer.ops import use_backend
from gossamer.ops.kv_profile import BEST_STEP, GROUP_BITS
from tests.kv.test_calibration import manifest_of, random_weights

SHAPE = KVShape(layers=2, query_heads=4, kv_heads=2, head_dim=32)
TOKENS = 512


def random_rows(shape=SHAPE, tokens=TOKENS):
    """Per layer rows [Hk, T, D] and gradients: correlated, of different sizes, and off zero."""
    size = (shape.kv_heads, shape.head_dim, shape.head_dim)

    def mixed():
        sizes = torch.logspace(0, -1, shape.head_dim)
        turn = torch.linalg.qr(torch.randn(size))[0]
        return torch.randn(shape.kv_heads, tokens, shape.head_dim) * sizes @ turn

    return [(mixed() + 3 * torch.randn(shape.head_dim), mixed()) for _ in range(shape.layers)]


def measured(data, centred, window=TOKENS, shape=SHAPE):
    """What two passes over the windows find."""
    rows = Rows(shape, TOKENS)
    for layer, (x, _) in enumerate(data):
        for part in x.split(window, 1):
            rows.add(layer, part)
    sensitivity = Sensitivity(rows, centred)
    for layer, pair in enumerate(data):
        for x, gradient in zip(*(t.split(window, 1) for t in pair), strict=True):
            sensitivity.add(layer, x, gradient)
    return rows, sensitivity


@pytest.fixture(scope="module")
def bases():
    return {
        name: coded_basis(*measured(random_rows(), centred)) for name, centred in CENTRED.items()
    }


def calibration_of(coded, shape=SHAPE):
    basis = torch.eye(shape.head_dim).repeat(shape.layers, shape.kv_heads, 1, 1)
    return Calibration(manifest_of(random_weights(shape), shape), basis, basis.clone(), {}, coded)


@pytest.mark.parametrize("centred", [True, False])
def test_moments_leave_out_the_first_block_of_a_window(centred):
    data = random_rows()
    rows, sensitivity = measured(data, centred, window=256)
    for layer, (x, gradient) in enumerate(data):
        kept = torch.cat([part[:, 32:] for part in x.double().split(256, 1)], 1)
        slopes = torch.cat([part[:, 32:] for part in gradient.double().split(256, 1)], 1)
        mean = kept.mean(1) if centred else torch.zeros(2, 32, dtype=torch.float64)
        torch.testing.assert_close(sensitivity.mean[layer], mean)
        off = kept - mean[:, None]
        spread = off.mT @ off / off.shape[1]
        torch.testing.assert_close(rows.spread(layer, mean), spread)
        length = (off @ torch.linalg.inv(spread) * off).sum(-1, keepdim=True) / 32
        relative = (slopes * length.sqrt()).split(224, 1)
        relative = torch.cat([clipped(part) for part in relative], 1)
        found = sensitivity.of(layer).relative.mean(0)
        torch.testing.assert_close(
            found, relative.mT @ relative / off.shape[1], rtol=0.02, atol=0.02
        )
        assert rows.samples[layer][0].shape[1] == 224


def test_channels_are_independent_in_rows_and_in_the_loss():
    """Unit variance and no correlation; errors of two channels do not add up; most important first.

    In the coordinates of relative rows, about which the basis is.
    """
    data = random_rows()
    rows, sensitivity = measured(data, centred=True)
    found = coded_basis(rows, sensitivity)
    identity = torch.eye(32, dtype=torch.float64)
    for layer in range(SHAPE.layers):
        basis = found.basis[layer].double()
        moment = sensitivity.of(layer).directions.mean(0)
        torch.testing.assert_close(
            basis.mT @ moment @ basis, identity.expand(2, -1, -1), rtol=0, atol=1e-3
        )
        inverse = torch.linalg.inv(basis)
        worth = inverse @ sensitivity.of(layer).relative.mean(0) @ inverse.mT
        sizes = worth.diagonal(dim1=-2, dim2=-1)
        assert bool((sizes.diff(dim=-1) <= 1e-6 * sizes[:, :1]).all())
        scaled = worth / (sizes.unsqueeze(-1) * sizes.unsqueeze(-2)).sqrt()
        assert (scaled - identity).abs().max() < 0.1


def test_steps_of_normal_rows_are_the_best_ones():
    z = torch.randn(2, 20000, 8)
    steps, errors = best_steps(z)
    for index, bits in enumerate(STEP_BITS):
        if bits == 8:  # for which there is room: nothing is clipped
            assert bool((127 * steps[:, index] > z.abs().amax(1)).all())
            assert errors[:, index].max() < 0.1 * NORMAL_ERROR[4]
            continue
        factor = steps[:, index] / BEST_STEP[bits]
        assert 0.75 < factor.min() <= factor.max() < 1.35
        torch.testing.assert_close(
            errors[:, index], torch.full((2, 8), NORMAL_ERROR[bits]), rtol=0.6, atol=0
        )
    torch.testing.assert_close(errors[:, -1], torch.ones(2, 8), rtol=0.1, atol=0)


@pytest.mark.parametrize("bits", ["8x8+4x8+3x8+2x8", "4x32", "8x16+0x16"])
def test_blocks_lose_what_the_table_says(bits):
    """Rows in the resolved basis, through a store: the loss's share of each channel is known."""
    data = random_rows()
    rows, sensitivity = measured(data, centred=True)
    found = coded_basis(rows, sensitivity)
    layout = Coded(bits)
    basis = found.resolved(layout)
    level = [GROUP_BITS.index(b) for b in layout.format(32).profile.bits for _ in range(8)]
    for layer, (x, _) in enumerate(data):
        turned = ((x - basis.mean[layer][:, None]).double() @ basis.matrix[layer]).float()[:, 32:]
        slots = torch.arange(turned.shape[1])
        store = BlockStore.allocate(Side(layout), turned.shape[1] // 32, 2, 32)
        with use_backend("reference"):
            store.write(turned.transpose(0, 1).contiguous(), slots)
            back = store.read(slots, torch.float32).transpose(0, 1)
        moment = sensitivity.of(layer).gradients.mean(0)
        dual = basis.inverse[layer] @ moment @ basis.inverse[layer].mT
        lost = (back - turned).double().square().mean(1) * dual.diagonal(dim1=-2, dim2=-1)
        expected = found.errors[layer, :, 0, level, torch.arange(32)].double()
        torch.testing.assert_close(lost, expected, rtol=1e-3, atol=1e-9)


def test_a_scale_per_row_helps_rows_of_different_lengths():
    data = [(x * torch.rand(2, TOKENS, 1).mul(3).exp(), gradient) for x, gradient in random_rows()]
    rows, sensitivity = measured(data, centred=False)
    errors = coded_basis(rows, sensitivity).table()
    plain, scaled = (torch.tensor(errors[name]) for name in SCALES)
    assert float(scaled[1].sum()) < 0.5 * float(plain[1].sum())  # 4 bits


def test_long_gradients_are_clipped():
    gradients = torch.randn(2, 200, 8)
    gradients[1, 5] *= 100
    lengths, kept = gradients.norm(dim=-1), clipped(gradients).norm(dim=-1)
    assert int((kept < 0.999 * lengths).sum()) <= 4
    assert kept[1, 5] < 2 * lengths[1].sort().values[-3]
    torch.testing.assert_close(
        clipped(gradients)[1, 5] / kept[1, 5], gradients[1, 5] / lengths[1, 5]
    )


def test_rows_that_the_loss_depends_on_decide():
    """Half of the rows lie along one half of the channels, and only they have gradients."""
    x = torch.randn(2, TOKENS, 32)
    x[:, ::2, :16] *= 0.1
    x[:, 1::2, 16:] *= 0.1
    gradient = torch.randn_like(x)
    gradient[:, 1::2] *= 0.01
    _, sensitivity = measured([(x, gradient)] * SHAPE.layers, centred=False)
    energy = sensitivity.of(0).directions.mean(0).diagonal(dim1=-2, dim2=-1)
    assert bool((energy[:, 16:].mean(-1) > 20 * energy[:, :16].mean(-1)).all())
    weights = importance(gradient)
    torch.testing.assert_close(weights.mean(1), torch.ones(2, 1))
    assert torch.equal(importance(torch.zeros(1, 3, 4)), torch.ones(1, 3, 1))


def test_copies_of_a_window_are_more_rows_of_it():
    """At other positions: each without its first block, and all in the same half of the text."""
    copies = torch.randn(3, 2, 2, TOKENS, 32)  # [windows, Hk, copies, T, D]
    gradients = torch.randn_like(copies)
    rows = Rows(SHAPE, TOKENS)
    for part in copies:
        rows.add(0, part)
    assert rows.counts[0] == 3 * 2 * (TOKENS - 32)
    torch.testing.assert_close(rows.mean(0), copies[..., 32:, :].double().mean((0, 2, 3)))
    sensitivity = Sensitivity(rows, centred=True)
    for part, gradient in zip(copies, gradients, strict=True):
        sensitivity.add(0, part, gradient)
    assert sorted(sensitivity.counts[:, 0].tolist()) == [2 * (TOKENS - 32), 4 * (TOKENS - 32)]


def test_worth_is_measured_on_other_windows():
    """Of gradients without structure, all channels are worth the same; but not on own rows."""
    data = [(x, torch.randn_like(x)) for x, _ in random_rows()]
    moments = measured(data, centred=True, window=TOKENS // 4)[1].of(0)
    own = moments._replace(relative=moments.relative[:1].expand(2, -1, -1, -1))
    own = own._replace(directions=moments.directions[:1].expand(2, -1, -1, -1))
    spread = [
        m.worth(relative=True)[:, :8].mean() / m.worth(relative=True)[:, -8:].mean()
        for m in (moments, own)
    ]
    assert spread[0] < spread[1]


def test_row_scale():
    torch.testing.assert_close(row_scale(torch.tensor([[3.0, 4.0]])), torch.tensor([[12.5**0.5]]))
    assert row_scale(torch.zeros(1, 2)) > 0


def test_percentages_become_bits(bases):
    calibration = calibration_of(bases)
    for spec, most in (("coded:25%", 2 * 16), ("coded:20.5%", 2 * 13.12), ("coded:40%", 2 * 25.6)):
        config = KVConfig.parse(spec).resolve(calibration)
        assert config.resolved
        assert KVConfig.parse(str(config)) == config
        assert config.block_bytes(SHAPE) / (4 * 32) <= most
        assert "x" in str(config)
    one = KVConfig.parse("k=dense:int4@channel,v=coded:26%").resolve(calibration)
    assert one.k == KVConfig.parse("k=dense:int4@channel,v=dense").k
    assert one.v.layout.scales == "row"
    assert one.v.block_bytes(32) == 32 * 10
    other = KVConfig.parse("k=dense:int4@channel,v=coded:26%@none").resolve(calibration)
    assert other.v.block_bytes(32) == 32 * 16
    assert one.sink == 32
    with pytest.raises(ValueError, match=r"coded:10%: 6.4 bytes have no room for codes"):
        KVConfig.parse("k=dense,v=coded:10%").resolve(calibration)


def test_more_bytes_are_never_worse(bases):
    calibration = calibration_of(bases)
    tables = {name: basis.table() for name, basis in calibration.coded.items()}

    def error(percent):
        config = KVConfig.parse(f"coded:{percent}%").resolve(calibration)
        total = 0.0
        for name, side in (("k", config.k), ("v", config.v)):
            bits = side.format(32).profile.bits
            table = tables[name][side.layout.scales]
            total += sum(table[GROUP_BITS.index(b)][g] for g, b in enumerate(bits))
        return total

    errors = [error(percent) for percent in (16, 20, 26, 33, 40, 52)]
    assert errors == sorted(errors, reverse=True)


def test_a_calibration_without_codes():
    calibration = calibration_of({})
    for spec in ("coded:25%", "coded:4x32", "k=dense,v=coded:4x32"):
        v = KVConfig.parse(spec).v
        ask = partial(calibration.basis, "v", v)
        if not v.layout.resolved:
            ask = partial(calibration.pick_bits, v.layout, v.layout)
        with pytest.raises(ValueError, match=r"of tiny has no steps of coded rows, which .* again"):
            ask()


def test_what_a_coded_basis_cannot_be(bases):
    known = bases
    broken = {
        r"k_coded_mean is float32 \[2, 2, 8\]; must be float32 \[2, 2, 32\]": {
            "mean": torch.zeros(2, 2, 8)
        },
        "k_coded_basis is not finite": {"basis": known["k"].basis * torch.nan},
        "k_coded_basis is not invertible": {"basis": torch.ones(2, 2, 32, 32)},
        "k_coded_steps or k_coded_errors has negative values": {"steps": -known["k"].steps},
        "k_coded_steps is float64": {"steps": known["k"].steps.double()},
    }
    for message, change in broken.items():
        with pytest.raises(ValueError, match=message):
            calibration_of({"k": replace(known["k"], **change)})


def test_save_and_load(tmp_path, bases):
    pytest.importorskip("safetensors")
    calibration = calibration_of(bases)
    calibration.save(tmp_path / "x.safetensors")
    loaded = Calibration.load(tmp_path / "x.safetensors")
    assert set(loaded.tensors) == set(calibration.tensors)
    for name, tensor in calibration.tensors.items():
        assert torch.equal(loaded.tensors[name], tensor)
    config = KVConfig.parse("coded:25%")
    assert config.resolve(loaded) == config.resolve(calibration)


def test_random_weights_have_a_blank_one():
    blank = Calibration.blank(SHAPE, "random")
    config = KVConfig.parse("coded:25%").resolve(blank)
    assert config.share(SHAPE) <= 0.25
    basis = blank.basis("k", config.k)
    assert basis.mean is None
    assert isinstance(blank.coded["k"], CodedBasis)
