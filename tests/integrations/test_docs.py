"""docs/transformers.md and the examples run as they are written."""

import re
import runpy
from pathlib import Path

import pytest
import torch

from gossamer.integrations import transformers as integration

pytest.importorskip("transformers")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "transformers.md").read_text()


@pytest.fixture
def loaded(smollm2, monkeypatch):
    """Blocks and examples get the model that is loaded already, as it would be loaded."""
    model, tokenizer = smollm2
    name = model.config._attn_implementation
    monkeypatch.setattr(integration, "load_model", lambda *_: (model, tokenizer))
    yield model
    model.set_attn_implementation(name)


def test_page(loaded):
    """All blocks, one after the other."""
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 7
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/transformers.md", "exec"), names)
    first, second = names["first"][0].tolist(), names["second"][0].tolist()
    assert second[: len(first)] == first
    assert names["states"].shape == (2, 128, 64)


def test_pipeline_example(loaded, capsys):
    main = runpy.run_path(str(ROOT / "examples" / "transformers_pipeline.py"))["main"]
    main("The sea is", kv="dense", new=4)
    dynamic, ours = capsys.readouterr().out.splitlines()[:2]
    assert dynamic.removeprefix("DynamicCache:") == ours.removeprefix("dense:")


def test_kvpress_example(loaded, capsys):
    """With the presses where kvpress is installed, and without them where it is not."""
    main = runpy.run_path(str(ROOT / "examples" / "kvpress_comparison.py"))["main"]
    main(ROOT / "benchmarks" / "data" / "wikitext2-test-excerpt.txt", tokens=100, new=2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "DynamicCache: 100% of the bytes, 2 of 2 tokens as with all of them"
    assert any(line.startswith(("SnapKVPress", "no presses: ")) for line in lines)
