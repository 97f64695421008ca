"""The selector: only what can take a call, and the cheapest of that."""

import math

import pytest
import torch

from gossamer import masks as m
from gossamer.attention import prepare, selector
from gossamer.attention.candidates import Arguments, Call, Candidate
from gossamer.attention.coefficient_files import SHIPPED, Coefficients, read
from gossamer.attention.cost import FEATURES, Model, TileFacts
from gossamer.attention.plans import plan_of
from gossamer.attention.prepared import PreparedMask
from gossamer.attention.selector import candidates, plan, ranked
from gossamer.ops import OPS
from tests.attention.oracle import inputs


def arguments(q_len=100, kv_len=100, heads=4, kv_heads=4, dtype=torch.float32, **others):
    q, k, v = inputs(1, heads, kv_heads, q_len, kv_len, 64, dtype)
    values = {"bias": None, "scale": 0.125, "softcap": 0.0, "return_lse": False} | others
    return Arguments(q, k, v, **values)


def names(mask, args, backend=None):
    q_len, kv_len = args.q.shape[2], args.k.shape[2]
    prepared = prepare(mask, q_len, kv_len, "cpu")
    return {str(candidate) for candidate in candidates(prepared, args, backend)}


BLOCKS = {"cpu 64x64", "cpu 32x32"}


def id_of(value):
    """The order of a set differs between processes, and so would names of tests."""
    return ", ".join(sorted(value)) if isinstance(value, set) else str(value)


@pytest.mark.parametrize(
    ("mask", "options", "wanted"),
    [
        (m.Full(), {}, BLOCKS | {"sdpa torch"}),
        (m.Causal(), {}, BLOCKS | {"sdpa torch"}),
        (m.Causal(), {"kv_heads": 2}, BLOCKS | {"sdpa torch"}),
        (m.Causal(), {"return_lse": True}, BLOCKS),
        (m.Causal(), {"softcap": 1.0}, BLOCKS),
        (m.Causal(), {"bias": torch.zeros(1)}, BLOCKS),
        (m.Causal(), {"scale": -1.0}, BLOCKS),
        (m.Causal(), {"kv_len": 120}, BLOCKS | {"sdpa mask"}),
        (m.Causal(-1), {}, BLOCKS),  # the first query sees nothing: NaN of SDPA
        (m.PrefixLM(7), {}, BLOCKS | {"sdpa mask"}),
        (m.PrefixLM(7), {"kv_heads": 2}, BLOCKS),
        (m.Sliding(2, 0), {}, BLOCKS | {"sdpa mask", "rows cpu"}),
        (m.Sliding(2, 0), {"return_lse": True}, BLOCKS | {"rows cpu"}),
    ],
    ids=id_of,
)
def test_who_can_take_a_call(mask, options, wanted):
    assert names(mask, arguments(**options)) == wanted


def test_a_backend_by_name_is_only_that():
    assert names(m.Full(), arguments(), "reference") == {"reference 64x64"}
    assert names(m.Full(), arguments(), "triton") == {"triton 64x64", "triton 128x64"}
    assert names(m.Full(), arguments(), "cpu") == BLOCKS


def test_large_masks_are_not_made_dense(monkeypatch):
    monkeypatch.setattr(selector, "MOST_DENSE", 100 * 100 - 1)
    assert "sdpa mask" not in names(m.PrefixLM(7), arguments())
    assert "sdpa mask" in names(m.PrefixLM(7), arguments(q_len=99))


def test_long_masks_are_not_counted_in_small_tiles(monkeypatch):
    monkeypatch.setattr(selector, "MOST_BOXES", 4)
    assert names(m.Causal(), arguments(return_lse=True)) == {"cpu 64x64"}
    assert names(m.Causal(), arguments(300, 300, return_lse=True)) == {"cpu 64x64"}


def constant(**costs):
    """Coefficients by which candidates take the given microseconds, whatever the call is."""
    groups = {}
    for name, cost in costs.items():
        family = name.replace("_", " ")
        size = len(FEATURES[Candidate.parse(family).kernel])
        groups[f"{family} d64"] = (float(cost), *([0.0] * (size - 1)))
    return Coefficients(Model(1, groups), "a device")


def test_the_cheapest_comes_first_and_the_unknown_last():
    mask, args = prepare(m.Sliding(2, 0), 100, 100, "cpu"), arguments()
    listed = candidates(mask, args)
    known = constant(cpu_32x32=3, sdpa_mask=2, rows_cpu=7)
    order = [str(candidate) for candidate in ranked(mask, args, listed, known)]
    assert order == ["sdpa mask", "cpu 32x32", "rows cpu", "cpu 64x64"]


@pytest.mark.parametrize(
    ("microseconds", "first"), [(8, "cuda 64x64"), (90, "triton 64x64"), (500, "triton 64x64")]
)
def test_what_the_gpu_hides_of_the_host_does_not_count(microseconds, first):
    """Triton's launcher needs 107 us, the C++ op 17."""
    mask, args = prepare(m.Causal(), 100, 100, "cpu"), arguments()
    listed = [Candidate.parse("cuda 64x64"), Candidate.parse("triton 64x64")]
    known = constant(cuda_64x64=microseconds + 5, triton_64x64=microseconds)
    assert str(ranked(mask, args, listed, known)[0]) == first


def test_unmeasured_devices_take_no_risks():
    mask, args = prepare(m.Sliding(2, 0), 100, 100, "cpu"), arguments()
    known = constant(cpu_32x32=3, sdpa_mask=2, rows_cpu=1)
    unsure = Coefficients(known.model, "another device", known=False)
    assert str(ranked(mask, args, candidates(mask, args), unsure)[0]) == "cpu 32x32"


def test_sdpa_that_fails_is_not_taken(monkeypatch):
    mask, args = prepare(m.Causal(), 100, 100, "cpu"), arguments()
    monkeypatch.setattr("gossamer.attention.selector.coefficients_of",
                        lambda device: constant(sdpa_torch=1, cpu_32x32=2))  # fmt: skip
    assert str(plan(mask, args, None).candidate) == "sdpa torch"

    def broken(*_, **__):
        raise RuntimeError("no kernel")

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", broken)
    assert str(plan(mask, args, None).candidate) == "cpu 32x32"


def test_thin_masks_are_not_computed_densely():
    args = arguments(1000, 1000)
    mask = prepare(m.Sliding.causal(64), 1000, 1000, "cpu")
    assert plan(mask, args, None).candidate.kernel == "block"


def h200(mask, n, batch, head_dim=64, names=()):
    """What the shipped coefficients choose on an H200."""
    model = read(SHIPPED / "nvidia-h200.json").model
    call = Call(batch, 12, 12, n, n, head_dim, 2)
    costs = {}
    for name in names:
        candidate = Candidate.parse(name)
        tiles = m.TileMap.build(mask, n, n, candidate.facts_tile)
        cost = model.microseconds(candidate, call, TileFacts.of(tiles))
        costs[name] = math.inf if cost is None else cost
    return min(costs, key=costs.get)


CUDA = ("cuda 32x32", "cuda 64x32", "cuda 64x64", "cuda 128x64", "triton 64x64", "triton 128x64")


def test_choices_of_the_shipped_coefficients():
    assert h200(m.Causal(), 4096, 16, 64, CUDA) in ("cuda 128x64", "triton 128x64")
    assert h200(m.Sliding.causal(64), 4096, 16, 64, CUDA) != "cuda 128x64"
    # A global token makes one row long: with few heads it is cut.
    whole, cut = "cuda 64x64", "cuda 64x64 limit=8"
    assert h200(m.Longformer(32, 0), 4096, 1, 64, (whole, cut)) == cut
    assert h200(m.Sliding.causal(64), 4096, 16, 64, (whole, cut)) == whole


def test_a_plan_says_what_it_is():
    mask, args = prepare(m.Causal(), 100, 100, "cpu"), arguments()
    found = plan_of(mask, Candidate("block", "cpu", (32, 32)), args)
    assert str(found.candidate) == "cpu 32x32"
    assert found.scale == 0.125


@pytest.fixture
def as_if_on_h200(monkeypatch):
    """Tensors stay on the CPU; who asks is told that there is an H200."""
    for op in (OPS["masked_attention"], OPS["masked_attention_rows"]):
        monkeypatch.setattr(op, "why_not", lambda backend, device: None if backend != "cpu" else "")
    monkeypatch.setattr(selector, "places_of", lambda device: 132)
    for name in ("can_use_flash_attention", "can_use_cudnn_attention"):
        monkeypatch.setattr(torch.backends.cuda, name, lambda params: True)

    def prepared(mask, n):
        found = prepare(mask, n, n, "cpu")
        for tile in ((32, 32), (64, 32), (64, 64), (128, 64)):
            found.facts(tile)
        found.shape()
        found.dense()
        found.device = torch.device("cuda:0")
        return found

    return prepared


def test_who_can_take_a_call_on_a_gpu(as_if_on_h200):
    half = arguments(dtype=torch.float16)
    listed = {str(candidate) for candidate in candidates(as_if_on_h200(m.Causal(), 100), half)}
    assert listed == {*CUDA, "sdpa flash", "sdpa cudnn"}
    for other in (arguments(), arguments(dtype=torch.float16, bias=torch.zeros(1))):
        listed = {
            str(candidate) for candidate in candidates(as_if_on_h200(m.PrefixLM(3), 100), other)
        }
        assert {"triton 64x64", "triton 128x64"} <= listed
        assert not any(candidate.startswith("cuda") for candidate in listed)
    lse = arguments(dtype=torch.float16, return_lse=True)
    listed = {str(candidate) for candidate in candidates(as_if_on_h200(m.Causal(), 100), lse)}
    assert "sdpa flash" in listed
    assert "sdpa cudnn" not in listed


def test_long_rows_are_cut_on_a_gpu(as_if_on_h200):
    args = arguments(4096, 4096, heads=12, kv_heads=12, dtype=torch.float16)
    mask = as_if_on_h200(m.Longformer(32, 0), 4096)
    listed = candidates(mask, args)
    limits = {candidate.limit for candidate in listed if candidate.family == "cuda 64x64"}
    assert 0 in limits
    assert len(limits) > 1
    known = read(SHIPPED / "nvidia-h200.json")
    best = ranked(mask, args, listed, known)[0]
    assert best.backend == "cuda"
    assert best.limit


def test_a_family_gets_what_its_first_mask_got(monkeypatch):
    """At lengths of the same power of two: nothing is counted but the tiles that are needed."""
    known = constant(cpu_32x32=1, cpu_64x64=2, sdpa_mask=3)
    monkeypatch.setattr(selector, "coefficients_of", lambda device: known)
    first = prepare(m.Causal(30), 70, 100, "cpu")
    chosen = plan(first, arguments(70, 100), None).candidate
    assert chosen.kernel == "block"

    def counted(*_):
        raise AssertionError("tiles were counted")

    monkeypatch.setattr(PreparedMask, "facts", counted)
    other = prepare(m.Causal(20), 100, 120, "cpu")
    args = arguments(100, 120)
    found = plan(other, args, None)
    assert found.candidate == chosen
    out, _ = found.run(args.q, args.k, args.v, None, args.scale, 0.0)
    scores = args.q.double() @ args.k.double().mT * args.scale
    weights = scores.masked_fill(~other.dense(), -math.inf).softmax(-1)
    torch.testing.assert_close(out.double(), weights @ args.v.double(), rtol=0, atol=1e-5)
    for mask, lengths in ((m.Causal(20), (100, 130)), (m.Sliding.causal(20), (70, 100))):
        with pytest.raises(AssertionError, match="tiles were counted"):  # of another kind
            plan(prepare(mask, *lengths, "cpu"), arguments(*lengths), None)


def test_a_family_shares_no_kernel_that_one_of_them_cannot_have(monkeypatch):
    """SDPA makes NaN of a query that sees nothing, as the second mask has."""
    known = constant(sdpa_mask=1, cpu_32x32=2)
    monkeypatch.setattr(selector, "coefficients_of", lambda device: known)
    args = arguments(40, 40)
    assert str(plan(prepare(m.Causal(1), 40, 40, "cpu"), args, None).candidate) == "sdpa mask"
    blind = prepare(m.Causal(-3), 40, 40, "cpu")
    found = plan(blind, args, None)
    assert found.candidate.kernel == "block"
    assert not found.run(args.q, args.k, args.v, None, args.scale, 0.0)[0].isnan().any()
