"""Tables of decode attention, from made-up result lines and from none."""

import pytest
import torch

from benchmarks.reports import decode as decode_report
from benchmarks.reports.decode import CPU_TABLES, GPU_TABLES
from benchmarks.reports.pages import updated
from benchmarks.suites.decode_attention import as_case
from benchmarks.suites.decode_cases import cpu_cases, cuda_cases
from gossamer.bench import Measurement, Record, Timing, write_records


def _record(case, backend, ms):
    made = as_case(case, "cpu")
    return Record.of(
        Measurement(Timing(ms, ms, ms, ms, 1), 0.0, 0.0),
        op="decode_attention",
        backend=backend,
        shape=made.shape,
        dtype=case.dtype,
        variant=made.variant,
        bytes=case.bytes,
        flops=made.flops,
        ceiling_gbps=1e3,
        device="cpu",
        facts=made.facts,
    )


def _records(cases, ours, peers):
    """Ours at the speed of 1000 GB/s, the fastest peer 2 times as long as that for dense bytes."""
    records = []
    for case in cases:
        backend = case.backends[0] if len(case.backends) == 1 else ours
        records.append(_record(case, backend, case.bytes / 1e9))
        if case.has_peers:
            for i, peer in enumerate(peers):
                records.append(_record(case, peer, (i + 2) * case.dense_bytes / 1e9))
    return records


@pytest.fixture(scope="module")
def gpu():
    return _records(cuda_cases(), "cuda", ("sdpa_cudnn", "sdpa_flash"))


@pytest.fixture(scope="module")
def cpu():
    return _records(cpu_cases(), "cpu", ("sdpa",))


def test_the_headline_compares_with_the_fastest_peer(gpu):
    table = decode_report.headline(gpu).splitlines()
    assert len(table) == 2 + 9
    # 16.8 MB of dense blocks; keep 64 takes 0.5625 of them, keep 40 0.375.
    assert table[2].startswith(
        "| 1 | 8 | 4,096 | 0.0336 ms | 0.00945 ms | 3.55x | 0.00631 ms | 5.32x |"
    )


@pytest.mark.parametrize("name", GPU_TABLES)
def test_gpu_tables_are_complete(gpu, name):
    table = GPU_TABLES[name](gpu)
    missing = {"decode-shapes": 18}.get(name, 0)  # FlashInfer, which these lines lack
    assert table.count(" - ") == missing
    assert GPU_TABLES[name]([]).count(" - ") > missing


def test_the_cpu_table_is_complete(cpu):
    table = CPU_TABLES["decode-cpu"](cpu)
    assert " - " not in table
    assert len(table.splitlines()) == 2 + len(list(cpu_cases()))


def test_other_points_are_in_a_table(gpu):
    """Nothing that is measured is left untold."""
    shown = decode_report.others(gpu).splitlines()[2:]
    told = [c for c in cuda_cases() if decode_report._is_other(c)]
    assert len(shown) == len(told)
    for case in cuda_cases():
        shape = (case.batch, case.kv_heads, case.context)
        tables = [
            case in told,
            shape in decode_report.NINE_SHAPES and (case.k, case.v) in decode_report.CACHES,
            case.k.keep in decode_report.SWEEP and shape[:2] == (8, 8),
            case.note.startswith(("lengths", "pages")),
        ]
        assert any(tables), case


def test_mustafar_is_compared_at_equal_sparsity(gpu):
    first = decode_report.mustafar(gpu).splitlines()[2]
    assert first.startswith(
        "| 1 | 8 | 4,096 | 0.326 ms | 0.00945 ms | 34x | 0.26 ms | 0.00631 ms | 41x |"
    )


def test_pages_find_their_tables(gpu, cpu, tmp_path):
    write_records(gpu, tmp_path / "a-gpu/decode_attention.jsonl")
    write_records(cpu, tmp_path / "a-cpu/decode_attention.jsonl")
    page = "".join(f"<!-- {n} -->\n<!-- /{n} -->\n" for n in (*GPU_TABLES, *CPU_TABLES))
    made = updated(page, tmp_path)
    assert made.count("(copy 1000 GB/s; ") == len(GPU_TABLES) + len(CPU_TABLES)
    assert "decode_speedup.svg" in made
    assert updated(made, tmp_path) == made


def test_points_of_the_sweep_are_ratios(gpu):
    points = decode_report.points_of_sweep(gpu, 4_096)
    assert len(points) == len(decode_report.SWEEP)
    for _, ratio, limit in points:
        assert ratio == pytest.approx(2 * limit, rel=1e-3)
    assert torch.tensor(points)[:, 0].diff().lt(0).all()
