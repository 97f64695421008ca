"""TurboQuant, int8 and fp8 for each token: against loops, and against errors that are known."""

import math

import pytest
import torch

from gossamer.evaluation.peers import parse_peer
from gossamer.evaluation.peers.method import MethodAttention
from gossamer.evaluation.peers.per_token import PerToken, quantize
from gossamer.evaluation.peers.turboquant import TurboQuant, codebook, rotation
from gossamer.evaluation.peers.turboquant import quantize as turned
from tests.evaluation.peers import SCALING, Numbers, check, model_of_32, qkv
from tests.models.tiny import random_ids

# Squared errors of the best 1 to 4 bits for a standard normal (Max, 1960, table I).
DISTORTION = {1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497}
QUANTIZED = [TurboQuant(4), TurboQuant(2, window=0), PerToken("int8"), PerToken("fp8", window=3)]


def half(x):
    return float(torch.tensor(x).half())


def nearest(x, levels):
    return min(levels, key=lambda level: abs(level - x))


def slow_turboquant(row, bits):
    """One vector, coordinate by coordinate in float64."""
    row, width = row.tolist(), len(row)
    norm = math.sqrt(sum(x * x for x in row))
    turn, levels = rotation(width).tolist(), codebook(bits)
    codes = []
    for line in turn:
        coordinate = sum(r * x for r, x in zip(line, row, strict=True)) / norm
        codes.append(nearest(coordinate * math.sqrt(width), levels) / math.sqrt(width))
    back = [sum(turn[i][c] * codes[i] for i in range(width)) for c in range(width)]
    return torch.tensor(back, dtype=torch.float64) * half(norm)


def fp8_values():
    """Every e4m3 from its definition: 4 bits of exponent (bias 7), 3 of mantissa; 480 is a NaN."""
    small = [m / 8 * 2**-6 for m in range(8)]
    normal = [(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8)]
    positive = [x for x in small + normal if x <= 448]
    return sorted({*positive, *(-x for x in positive)})


def slow_per_token(row, kind):
    levels = list(range(-127, 128)) if kind == "int8" else fp8_values()
    scale = half(max(abs(x) for x in row.tolist()) / max(levels))
    return torch.tensor([nearest(x / scale, levels) * scale for x in row.tolist()])


def view_of(store, window):
    def view(q, k, v, head, i):
        rows = []
        for j in range(i + 1):
            row = k[0, head, j], v[0, head, j]
            rows.append(row if i - j < window else tuple(map(store, row)))
        return rows

    return view


@pytest.mark.parametrize(("bits", "window", "width"), [(4, 3, 16), (3, 0, 16), (2, 2, 12)])
def test_turboquant(bits, window, width):
    torch.manual_seed(bits)  # 1 in 10^6 coordinates is as near to a middle as float32 can tell
    view = view_of(lambda row: slow_turboquant(row, bits), window)
    check(TurboQuant(bits, window), 7, 0, view, width=width, groups=1)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("window", [0, 2])
def test_per_token(kind, window):
    torch.manual_seed(window)
    view = view_of(lambda row: slow_per_token(row, kind), window)
    check(PerToken(kind, window), 7, 0, view, width=16)


@pytest.mark.parametrize("bits", DISTORTION)
def test_the_codebook_is_the_best(bits):
    """Its error, by sums over a fine grid, is the published one."""
    levels = torch.tensor(codebook(bits), dtype=torch.float64)
    assert torch.equal(levels, levels.sort().values)
    torch.testing.assert_close(levels, -levels.flip(0), rtol=0, atol=1e-8)
    x = torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    error = (x[:, None] - levels).abs().amin(1) ** 2
    density = (-x * x / 2).exp() / math.sqrt(2 * math.pi)
    assert float(torch.trapezoid(error * density, x)) == pytest.approx(DISTORTION[bits], rel=5e-4)


@pytest.mark.parametrize("width", [1, 12, 64, 80, 128])
def test_the_rotation_keeps_lengths(width):
    turn = rotation(width)
    one = torch.eye(width, dtype=torch.float64)
    torch.testing.assert_close(turn @ turn.mT, one, rtol=0, atol=1e-12)
    assert torch.equal(turn, rotation.__wrapped__(width))  # of every run the same


def test_the_rotation_spreads_one_large_channel():
    """Rows with 99% of their length in one channel; after it none has more than a few times 1/D."""
    for width in (64, 80):
        spread = rotation(width)[:, 5] ** 2 * width
        assert float(spread.max()) < 12
        assert float(spread.mean()) == pytest.approx(1)


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("width", [64, 80, 128])
def test_errors_of_turboquant_are_the_codebooks(bits, width):
    """Of normal rows: the squared error relative to the row's is the distortion, or a little less.

    A coordinate of a direction has lighter tails than the normal, by the order of 1 / D: the error
    is 2.4 to 3.5% less for 64, 1.0 to 1.8% for 128.
    """
    x = torch.randn(10_000, width, generator=torch.Generator().manual_seed(1)) * 7
    error = (turned(x, bits) - x).square().sum() / x.square().sum()
    assert 1 - 3 / width < float(error) / DISTORTION[bits] < 1


def test_errors_of_8_bits():
    """int8: uniform within half a step, so step^2 / 12. e4m3: at most 1 in 16 of a normal entry."""
    x = torch.randn(2000, 64, generator=torch.Generator().manual_seed(2))
    step = x.abs().amax(1, keepdim=True) / 127
    error = quantize(x, "int8") - x
    assert float((error / step).square().mean()) == pytest.approx(1 / 12, rel=0.02)
    assert float((error / step).abs().max()) < 0.57  # 127 steps of a scale that is 1 in 2048 off
    large = x.abs() > x.abs().amax(1, keepdim=True) / 448 * 2**-6
    relative = ((quantize(x, "fp8") - x) / x)[large].abs()
    assert 0.05 < float(relative.max()) < 1 / 16


@pytest.mark.parametrize("store", [lambda x: turned(x, 3), lambda x: quantize(x, "int8"),
                                   lambda x: quantize(x, "fp8")])  # fmt: skip
def test_rows_are_stored_alone(store):
    """Zeros stay zeros, tiny rows stay finite, and no row changes what another one becomes."""
    x = torch.randn(5, 32)
    x[1], x[3] = 0, x[3] * 1e-9
    found = store(x)
    assert found.isfinite().all()
    assert not found[1].any()
    assert found[3].abs().max() < 1e-7
    torch.testing.assert_close(found[:1], store(x[:1]))
    torch.testing.assert_close(store(x[:1] * 4), 4 * found[:1])  # a power of two is only a scale
    torch.testing.assert_close(store(-x[:1]), -found[:1])


@pytest.mark.parametrize("method", QUANTIZED)
def test_token_by_token_is_the_same_as_at_once(method):
    q, k, v = qkv(60)
    at_once = MethodAttention(method, 40, 40)(1, q, k, v, SCALING)
    attention = MethodAttention(method, 40, 40)
    parts = [attention(1, *(x[:, :, :40] for x in (q, k, v)), SCALING)]
    for i in range(40, 60):
        parts.append(attention(1, q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], SCALING))
    torch.testing.assert_close(torch.cat(parts, 2), at_once, rtol=1e-4, atol=1e-5)


def test_on_a_model():
    """A window of everything changes nothing; fewer bits change likelihoods more."""
    torch.manual_seed(3)
    model, ids = model_of_32(), random_ids(80).tolist()

    def change(spec):
        found = parse_peer(spec)(model, Numbers()).loglikelihood([ids])[0]
        return float((torch.tensor(found) - plain).abs().mean())

    plain = torch.tensor(parse_peer("exact")(model, Numbers()).loglikelihood([ids])[0])
    for spec in ("turboquant:2,window=80", "int8,window=80", "fp8,window=80"):
        assert change(spec) < 1e-5
    coded = [f"turboquant:{bits},window=0" for bits in (4, 3, 2)]
    found = [change(spec) for spec in ("int8", "fp8", *coded)]
    assert found == sorted(found)
    assert found[0] > 0


def test_bytes_by_hand():
    """3 layers of 2 KV heads of 32 channels; a norm or scale has 2 bytes, for K and for V."""
    model = model_of_32()
    codes = {"turboquant:4": 16, "turboquant:3": 12, "turboquant:2": 8, "fp8": 32, "int8": 32}
    for spec, size in codes.items():
        assert parse_peer(spec)(model, None).bytes_per_token == 3 * 2 * 2 * (size + 2), spec


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("turboquant", "turboquant stands alone; must be followed by a number"),
        ("turboquant:8", "bits is 8; must be one of 2, 3, 4"),
        ("turboquant:3.5", "turboquant is followed by 3.5; must be an integer"),
        ("turboquant:4,window=-1", "window is -1; must be an integer >= 0"),
        ("int8:4", "int8 is followed by 4; must stand alone"),
        ("fp8,window=-1", "window is -1; must be an integer >= 0"),
        ("fp8,page=4", "option is 'page'; must be one of window"),
    ],
)
def test_bad_specs(spec, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        parse_peer(spec)
    assert str(caught.value).startswith(f"peer {spec!r}: {message}")


def test_an_unknown_kind():
    with pytest.raises(ValueError, match="kind is 'fp4'; must be one of int8, fp8"):
        PerToken("fp4")
