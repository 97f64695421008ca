"""Which kernel a cache decodes with, and how fast: as dispatch has it, and never in the way."""

import pytest
import torch

from gossamer.kernels.arguments import DecodeArguments
from gossamer.kv import KVConfig, KVShape, speed
from gossamer.kv.speed import DecodeSpeed, cuda_limits, decode_speed, kernel_family
from gossamer.ops import OPS
from gossamer.ops.backends import use_backend

OP = OPS["decode_attention"]
SHAPE = KVShape(layers=3, query_heads=4, kv_heads=2, head_dim=64)
SPECS = (
    "dense",
    "dense:int4",
    "k=dense:int4@channel,v=dense:int4@group",
    "sparse:k=32,v=32,window=64",
    "k=coded:8x8+4x40+2x16,v=coded:4x32+2x32@row",
    "k=dense:int4@channel,v=sparse:40:int4,sink=32",
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(speed, "POINTS", {"cuda": (2, 256), "cpu": (2, 256)})
    speed._measured.cache_clear()
    yield
    speed._measured.cache_clear()


@pytest.mark.parametrize("spec", SPECS)
def test_the_kernel_is_the_one_that_runs(spec, monkeypatch):
    """What `decode_speed` asks of the op is what a cache then calls it with."""
    seen = []
    select = OP.select
    monkeypatch.setattr(OP, "select", lambda *a: seen.append((a[0], OP.choose(*a))) or select(*a))
    config = KVConfig.of(spec, torch.float32)
    found = decode_speed(config, SHAPE, torch.float32, "cpu")
    assert found.tuned
    assert found.kernel.startswith("cpu ")
    assert {backend for device, backend in seen if device == "cpu"} == {"cpu"}
    assert found.us > 0
    assert found.against_dense == found.dense_us / found.us


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_limits_see_what_the_cache_passes(spec, dtype, monkeypatch):
    """Formats, windows and types of the question are those of a real call."""
    calls = []
    real = OP.__class__.__call__
    monkeypatch.setattr(
        OP.__class__,
        "__call__",
        lambda op, *a, **k: (calls.append(a) if op is OP else None, real(op, *a, **k))[1],
    )
    config = KVConfig.of(spec, dtype)
    decode_speed(config, SHAPE, dtype, "cpu")
    asked, *made = (DecodeArguments(*call) for call in calls)
    called = made[0]
    ignored = {"scale"} | ({"window", "dense_values"} if called.dense_k is None else set())
    for name, value in asked._asdict().items():
        if name in ignored:
            continue
        other = getattr(called, name)
        if isinstance(value, torch.Tensor):
            assert (value.dtype, value.shape[2:]) == (other.dtype, other.shape[2:])
        else:
            assert value == other, name


def test_an_untuned_backend_has_a_reason():
    config = KVConfig.parse("dense:int8")
    with use_backend("reference"):
        found = decode_speed(config, SHAPE, torch.float32, "cpu")
    assert (found.kernel, found.tuned, found.measured) == ("reference", False, False)
    assert found.reason == "another backend was asked for"
    assert found.slow
    assert "not measured" in str(found)


@pytest.mark.parametrize(
    ("spec", "family", "tuned"),
    [
        ("dense", "dense", True),
        ("dense:fp8", "codes", True),
        ("coded:8x8+4x40+2x16", "codes", True),
        ("sparse:k=32,v=16", "sparse", True),
        ("k=dense:int4@channel,v=sparse:32:int4", "sparse", True),
        ("k=dense:int8,v=sparse:32:int4", "sparse", False),
        ("k=sparse:32:int4,v=dense", "sparse", False),
    ],
)
def test_kernels_of_a_gpu(spec, family, tuned):
    for dtype in (torch.float16, torch.bfloat16):
        config = KVConfig.of(spec, dtype)
        assert kernel_family(config, 64) == family
        assert (cuda_limits(config, SHAPE, dtype) is None) == tuned
    config = KVConfig.of(spec, torch.float32)
    assert "fp16 and bf16 queries" in cuda_limits(config, SHAPE, torch.float32)


def test_a_window_of_another_type_counts():
    """fp16 rows in a bfloat16 model are no plain cache."""
    assert cuda_limits(KVConfig.parse("dense:fp16"), SHAPE, torch.bfloat16) is not None


def test_measured_once(monkeypatch):
    made = []
    real = speed._call
    monkeypatch.setattr(speed, "_call", lambda *a: made.append(a) or real(*a))
    first = decode_speed(KVConfig.parse("dense:int8"), SHAPE, torch.float32, "cpu")
    again = decode_speed(KVConfig.parse("dense:int8,basis=pca"), SHAPE, torch.float32, "cpu")
    assert first == again
    assert len(made) == 2  # it and dense


def test_memory_is_bounded():
    for heads in (1, 8, 64):
        shape = KVShape(1, heads, heads, 256)
        most = 256 << 20
        for sequences, wanted in ((8, 8192), (2, 4096), (3, 1), (64, 100_000)):
            tokens = speed._tokens(shape, torch.float32, (sequences, wanted), most)
            assert tokens >= 32
            assert tokens % 32 == 0
            nbytes = KVConfig.parse("dense:fp32").bytes_per_token(shape) * tokens * sequences
            assert nbytes <= most


def test_a_point_of_ones_own():
    config = KVConfig.parse("dense:int8")
    found = decode_speed(config, SHAPE, torch.float32, "cpu", point=(3, 200))
    assert found.point.startswith("3 x 192 tokens")
    assert found.measured


def test_threads_and_random_numbers_stay_as_they_are():
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    decode_speed(KVConfig.parse("dense:int8"), SHAPE, torch.float32, "cpu")
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_a_failed_measurement_is_a_reason(monkeypatch):
    def fail(*_):
        raise RuntimeError("no memory\nat all")

    monkeypatch.setattr(speed, "_call", fail)
    found = decode_speed(KVConfig.parse("dense:int8"), SHAPE, torch.float32, "cpu")
    assert (found.measured, found.reason) == (False, "measuring failed: no memory")
    assert not found.slow  # its kernel is a tuned one


def test_without_a_measurement():
    found = decode_speed(KVConfig(), SHAPE, torch.float32, "cpu", measure=False)
    assert (found.measured, found.reason) == (False, "not asked for")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_a_gpu_that_is_not_there():
    found = decode_speed(KVConfig.parse("dense:int8"), SHAPE, torch.float16, "cuda")
    assert (found.tuned, found.measured) == (False, False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("spec", SPECS)
def test_on_a_gpu(spec):
    config = KVConfig.of(spec, torch.float16)
    before = torch.cuda.memory_allocated()
    found = decode_speed(config, SHAPE, torch.float16, "cuda")
    assert found.measured
    assert found.kernel == f"cuda {kernel_family(config, 64)}"
    assert torch.cuda.memory_allocated() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_never_while_a_graph_is_captured():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.zeros(1, device="cuda")
        found = decode_speed(KVConfig.parse("dense:int8"), SHAPE, torch.float16, "cuda")
    assert found.reason == "a CUDA graph is being captured"


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (KVShape(1, 34, 2, 64), "34 heads and the cache 2; must be 1 to 16 times"),
        (KVShape(1, 2, 2, 20), "head_dim is 20"),
    ],
)
def test_models_that_cannot_have_it(shape, message):
    with pytest.raises(ValueError, match=message):
        decode_speed(KVConfig.parse("dense:int8"), shape, torch.float32, "cpu")


def test_bits_that_are_not_known():
    with pytest.raises(ValueError, match="25%"):
        decode_speed(KVConfig.parse("coded:25%"), SHAPE, torch.float32, "cpu")


def test_slow():
    assert DecodeSpeed("triton", False, us=200.0, dense_us=100.0).slow
    assert not DecodeSpeed("triton", False, us=99.0, dense_us=100.0).slow
    assert DecodeSpeed("triton", tuned=False).slow
    assert not DecodeSpeed("cuda codes", tuned=True).slow
    assert DecodeSpeed("cuda codes", True, us=50.0, dense_us=100.0).short == "2.00x (cuda codes)"
