"""The digest of weights: the same for the same weights, however they are kept."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gossamer.engine.identity import SAMPLE, cache_root
from gossamer.kv import KVConfig
from gossamer.models.directory import DirectorySource
from tests.models.tiny import tiny_model

pytest.importorskip("transformers")
CPU = torch.device("cpu")


def root_of(source: Any) -> bytes:
    return cache_root(source, KVConfig.parse("dense"), torch.float32, CPU, None)


def test_one_file_or_many(tmp_path):
    model = tiny_model("llama")
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert len([*(tmp_path / "many").glob("*.safetensors")]) > 1
    one, many = (DirectorySource.open(tmp_path / name) for name in ("one", "many"))
    assert [name for name, _ in one.tensors()] != [name for name, _ in many.tensors()]
    assert root_of(one) == root_of(many)


def test_every_tensor_counts(tmp_path):
    model = tiny_model("llama")
    model.save_pretrained(tmp_path / "before")
    roots = {root_of(DirectorySource.open(tmp_path / "before"))}
    for number, parameter in enumerate(model.parameters()):
        parameter.data += 1
        model.save_pretrained(tmp_path / str(number))
        roots.add(root_of(DirectorySource.open(tmp_path / str(number))))
    assert len(roots) == 1 + len([*model.parameters()])


def test_only_rows_in_the_middle_are_read():
    class Rows:
        shape = (100_001, 64)

        def __getitem__(self, part: Any) -> torch.Tensor:
            [rows] = part
            assert rows.stop - rows.start == SAMPLE // 64
            assert abs(rows.start + rows.stop - 100_001) <= 1
            return torch.ones(SAMPLE // 64, 64)

    source = SimpleNamespace(config="config", tensors=lambda **_: [("embed", Rows())])
    assert root_of(source) == root_of(source)
