"""The benchmark of whole models on a tiny one, and the tables that are made of its lines."""

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.end_to_end import fusion
from benchmarks.reports.fusion import failed, means, points
from gossamer.bench import read_records
from gossamer.cli.main import typer
from gossamer.workloads import transformers_models

SIZES = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    torch._dynamo.reset()
    folder = tmp_path_factory.mktemp("results")
    tiny = {
        "bert-base": ("BertConfig", "BertModel", {"num_hidden_layers": 1, **SIZES}),
        "t5-base": (
            "T5Config",
            "T5Model",
            {"d_model": 64, "d_kv": 32, "d_ff": 128, "num_layers": 1, "num_heads": 2},
        ),
    }
    app = typer.Typer()
    app.command()(fusion.main)
    ways = [x for way in ("eager", "gossamer", "attention", "fusion") for x in ("--ways", way)]
    where = ["--device", "cpu", "--dtype", "float32", "--results", str(folder), "--iters", "1"]
    sizes = ["--shapes", "2x32", "--masks", "stof-bigbird"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers_models, "CONFIGS", tiny)
        patch.setattr(fusion, "CONFIGS", tiny)
        for _ in range(2):  # the second time there is nothing left to measure
            result = CliRunner().invoke(app, [*where, *sizes, *ways])
            assert result.exit_code == 0, result.output
    (path,) = folder.rglob("fusion.jsonl")
    return read_records(path)


def test_every_way_is_right(records):
    assert len(records) == 2 * 4
    assert max(record.relative_error for record in records) < 1e-4
    assert all(record.facts["kernels"] > 0 for record in records)
    ours = [record for record in records if record.backend == "gossamer"]
    names = {name for record in ours for name in record.facts}
    assert any(name.startswith("kernel gossamer::") for name in names)


def test_tables(records):
    assert "| 2 x 32 |" in means(records)
    assert points(records).count("\n") == 2 + 2 - 1
    assert means([]) == points([]) == "Not measured yet."


def test_a_way_that_fails_is_a_row(tmp_path):
    """The last time counts; the table has it."""
    assert failed(tmp_path) == "No way is recorded as failed."
    path = tmp_path / "cpu/failures/fusion.jsonl"
    line = {"op": "fusion", "backend": "flex", "shape": [2, 32], "dtype": "float32"}
    for error in ("RuntimeError: first", "RuntimeError: a|b"):
        fusion.keep_failure(path, "cpu", line | {"variant": "model=x mask=y", "error": error})
    assert len(path.read_text().splitlines()) == 1
    assert "| model=x mask=y | 2 x 32 | flex | RuntimeError: a/b |" in failed(tmp_path)


def test_failures_keep_no_way_back(monkeypatch):
    def measured(subject, way, *rest):
        if way == "eager":
            raise RuntimeError("no\nmore")
        return way

    class Subject:
        batch, n, tokens, dtype, name = 2, 32, 32, torch.float32, "x"
        want = staticmethod(lambda mask: None)

    monkeypatch.setattr(fusion, "measured", measured)
    rows = []
    settings = fusion.Settings("auto", 1.0, 1)
    made = fusion.run(Subject(), ["causal"], ["eager", "gossamer"], set(), settings, rows.append)
    with pytest.warns(UserWarning, match="no eager: no"):
        assert list(made) == ["gossamer"]
    (row,) = rows
    assert row["backend"] == "eager"
    assert row["error"] == "RuntimeError: no"
