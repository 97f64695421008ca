"""The benchmark of whole models on a tiny one, and the tables that are made of its lines."""

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.end_to_end import fusion
from benchmarks.reports.fusion import means, points
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
