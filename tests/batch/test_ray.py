"""The same job over Ray Data, on this machine."""

import json

import pytest

from gossamer.batch import Summary, local, run
from tests.batch.jobs import completion, read, setup, write

pyarrow = pytest.importorskip("pyarrow", reason="pip install 'gossamer[ray]'")
on_ray = pytest.importorskip("gossamer.batch.on_ray", reason="pip install 'gossamer[ray]'")

WRONG = ["no json", completion(3), completion(999, model="other")]


def same(result):
    """What two runs have in common."""
    response = result["response"]
    if response is not None:
        body = response["body"]
        choices = body.get("choices", body.get("error"))
        result = result | {"response": [response["status_code"], choices]}
    return json.dumps(result)


def test_results_are_those_of_one_process(words, tmp_path, monkeypatch):
    """Two engines, several calls and blocks of each; then again from half of the results."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    lines = [*(completion(i) for i in range(150)), *WRONG]
    source, target = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    whole = tmp_path / "whole.jsonl"
    assert run(setup(words), source, whole, local.compute) == Summary(153, 150)
    content = whole.read_bytes()
    target.write_bytes(content[: len(content) // 3])
    assert run(setup(words), source, target, on_ray.computing(2)) == Summary(153, 150)
    first, second = read(whole), read(target)
    assert sorted(second) == list(range(1, 154))
    assert {n: same(result) for n, result in second.items()} == {
        n: same(result) for n, result in first.items()
    }


def test_an_engine_that_cannot_be_loaded(words, tmp_path, monkeypatch):
    """As in one process: a ValueError, for which commands exit with 2."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    source, target = write(tmp_path / "in.jsonl", [completion(1)]), tmp_path / "out.jsonl"
    small = setup(words, options=setup(words).options | {"kv_memory": "1KB"})
    for compute in (local.compute, on_ray.computing(1)):
        with pytest.raises(ValueError, match="kv_memory is 1000 bytes"):
            run(small, source, target, compute)
    assert target.read_bytes() == b""
