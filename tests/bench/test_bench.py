"""The benchmark driver: it times what it says, and it notices wrong results."""

import json
import time
from dataclasses import asdict, replace

import pytest
import torch

from gossamer.bench import (
    Measurement,
    Record,
    Timing,
    WrongResultError,
    benchmark_kernel,
    measure,
    read_records,
    write_records,
)
from gossamer.bench.record import device_folder, revision
from gossamer.bench.suite import Case, PeerUnavailableError, Suite
from gossamer.bench.table import records_table


def test_times_a_call():
    timing = benchmark_kernel(time.sleep, 0.002, warmup=1, iters=5)
    assert timing.iterations == 5
    assert 2 <= timing.low_ms <= timing.median_ms <= timing.high_ms


def test_counts_its_calls():
    calls = []
    benchmark_kernel(calls.append, "x", warmup=3, iters=4)
    assert calls == ["x"] * 7


@pytest.mark.parametrize(
    ("options", "message"), [({"iters": 0}, "iters is 0"), ({"warmup": -1}, "warmup is -1")]
)
def test_refuses_nonsense(options, message):
    with pytest.raises(ValueError, match=message):
        benchmark_kernel(len, [], **options)


def _args():
    return (torch.randn(100),)


def test_measures_error_of_the_timed_calls():
    result = measure(lambda x: x + 2e-7, _args, lambda x: x.double(), warmup=0, iters=3)
    assert 1e-7 < result.max_error < 6e-7
    assert 1e-7 < result.relative_error < 5e-7


def test_a_wrong_result_stops_the_benchmark():
    with pytest.raises(WrongResultError, match="relative error is 1; must be at most 5e-07"):
        measure(torch.zeros_like, _args, lambda x: x, warmup=0, iters=2)


def test_one_wrong_row_is_noticed():
    """Among 262,144 good rows it hardly moves the norm of the difference."""

    def args():
        x = torch.randn(262_144, 8).bfloat16()
        x[7] = 1
        return (x,)

    def forgets_a_row(x):
        y = x.clone()
        y[7] = 0
        return y

    with pytest.raises(WrongResultError, match="an element is off by 1"):
        measure(forgets_a_row, args, lambda x: x, warmup=0, iters=1)


def test_nan_is_a_wrong_result():
    with pytest.raises(WrongResultError, match="nan"):
        measure(lambda x: x * float("nan"), _args, lambda x: x, warmup=0, iters=2)


def test_only_the_last_call_wrong_is_noticed():
    """The results of timed calls are checked, not those of a separate run."""
    count = iter(range(100))
    with pytest.raises(WrongResultError):
        measure(lambda x: x if next(count) < 6 else -x, _args, lambda x: x, warmup=3, iters=4)


def test_calls_are_prepared_before_they_are_timed():
    """A peer with inputs of its own, or a CUDA graph, is made once for each argument set."""
    made = []

    def prepare(fn, x):
        made.append(x)
        return lambda: fn(x)

    measure(lambda x: x + 0, _args, lambda x: x, warmup=2, iters=3, prepare=prepare)
    assert len(made) == 1


def test_a_suite_may_allow_more():
    def off(x):
        return x + 1e-5

    with pytest.raises(WrongResultError):
        measure(off, _args, lambda x: x, warmup=0, iters=1)
    tolerance = {torch.float32: 1e-4}
    measure(off, _args, lambda x: x, warmup=0, iters=1, tolerance=tolerance)


def test_a_peer_that_cannot_run_is_left_out():
    def refuses(*_):
        raise PeerUnavailableError("not today")

    case = Case(
        shape=(4,),
        # Positive: of a negative number, gelu's 1 + erf cancels, and all 4 of them may be (4% of
        # normal inputs are off by more than is allowed, these by at most a third of it).
        make_args=lambda dtype, _: (torch.rand(4, dtype=dtype), torch.rand(4, dtype=dtype)),
        peers={"eager": lambda x, bias: torch.nn.functional.gelu(x + bias)},
        bytes=lambda *_: 48,
        flops=4,
        adapted={"refuses": refuses, "works": lambda x, b: lambda: torch.nn.functional.gelu(x + b)},
        dtypes=(torch.float32,),
        backends=(),
        facts={"half": 24},
    )
    suite = Suite("fused_add_gelu", lambda *_: [case])
    with pytest.warns(UserWarning, match="no refuses: not today"):
        records = suite.run("cpu", quick=True, on_record=lambda _: None)
    assert [r.backend for r in records] == ["eager", "works"]
    assert records[0].facts == {"half": 24}


@pytest.fixture
def record():
    measurement = Measurement(Timing(2.0, 1.9, 2.2, 0.01, 30), 1e-3, 1e-4)
    return Record.of(
        measurement,
        op="fused_add_gelu",
        backend="cpu",
        shape=(4, 8),
        dtype=torch.float16,
        variant="",
        bytes=4_000_000,
        flops=8_000_000,
        ceiling_gbps=4.0,
        device="cpu",
    )


def test_a_record_derives_rates(record):
    assert (record.gbps, record.ceiling_share, record.tflops) == (2.0, 0.5, 0.004)
    assert record.dtype == "float16"
    assert record.versions["torch"] == torch.__version__
    assert record.revision == revision() != ""


def test_records_survive_a_file(record, tmp_path):
    path = tmp_path / "folder" / "op.jsonl"
    write_records([record, record], path)
    assert read_records(path) == [record, record]
    assert len(path.read_text().splitlines()) == 2


def test_facts_are_in_the_line_where_there_are_any(record, tmp_path):
    path = tmp_path / "op.jsonl"
    knowing = replace(record, facts={"byte_limit": 2.5})
    write_records([record, knowing], path)
    assert read_records(path) == [record, knowing]
    assert ["facts" in line for line in path.read_text().splitlines()] == [False, True]


def test_a_bad_results_file_is_named(record, tmp_path):
    path = tmp_path / "op.jsonl"
    path.write_text(json.dumps(asdict(record) | {"extra": 1}) + "\n")
    with pytest.raises(ValueError, match=r"op\.jsonl:1 is not a record"):
        read_records(path)
    path.write_text("{")
    with pytest.raises(ValueError, match=r"op\.jsonl:1 is not JSON"):
        read_records(path)


def test_the_table_compares_with_eager(record):
    table = records_table([replace(record, backend="eager", median_ms=5.0), record])
    assert list(table.columns[6].cells) == ["1.00x", "2.50x"]


def test_the_table_compares_with_the_best_peer_where_there_is_no_eager(record):
    peers = [
        replace(record, backend=b, variant="dense", median_ms=t)
        for b, t in (("a", 8.0), ("b", 4.0))
    ]
    table = records_table([*peers, replace(record, variant="keep=40")])
    assert list(table.columns[6].cells) == ["0.50x", "1.00x", "2.00x"]


def test_device_folders_are_plain_names():
    assert set(device_folder("cpu")) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


@pytest.mark.gpu
def test_gpu_times_leave_out_the_launch():
    """A kernel of a few microseconds behind a slow host call is timed as a few microseconds."""
    x = torch.randn(1000, device="cuda")

    def slow_host(x):
        time.sleep(0.001)
        return x + 1

    timing = benchmark_kernel(slow_host, x, warmup=2, iters=10)
    assert timing.median_ms < timing.host_ms / 2


@pytest.mark.gpu
def test_a_closure_over_gpu_tensors_must_say_so():
    x = torch.randn(1000, device="cuda")
    with pytest.raises(ValueError, match="say device='cpu' or device='cuda'"):
        benchmark_kernel(lambda: x + 1)
    assert benchmark_kernel(lambda: x + 1, device="cuda").median_ms > 0


def test_a_stray_write_of_a_mutating_op_is_an_error():
    """The oracle starts from the arguments as they were, not as the timed calls left them."""

    def make_args():
        return torch.zeros(4), torch.ones(4)

    def careless(target, source):
        target[:2] = source[:2]
        target[3] = 7
        return target

    def oracle(target, source):
        target[:2] = source[:2]
        return target

    def preserve(args):
        return args[0].clone(), args[1]

    with pytest.raises(WrongResultError):
        measure(careless, make_args, oracle, warmup=1, iters=2, preserve=preserve)


def test_bytes_must_be_equal():
    def make_args():
        return (torch.arange(10, dtype=torch.uint8),)

    measure(lambda x: x + 1, make_args, lambda x: x + 1, warmup=1, iters=2)
    with pytest.raises(WrongResultError, match="1 of 10 bytes are wrong"):
        measure(lambda x: x + 1, make_args, lambda x: x + 1 + (x == 3), warmup=1, iters=2)
