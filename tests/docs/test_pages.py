"""Python blocks of pages run as they are written, one after the other."""

import pytest
import torch

from tests.docs.snippets import page, snippets

PAGES = (
    "docs/fusion.md",
    "docs/kv-cache.md",
    "docs/masked-attention.md",
    "docs/masks.md",
    "docs/operators.md",
    "docs/planning.md",
)


@pytest.mark.parametrize("path", PAGES)
def test_python(path):
    torch.manual_seed(0)
    blocks = [snippet.text for snippet in snippets(page(path)) if snippet.language == "python"]
    if not blocks:
        pytest.skip("there are no docs here")
    names: dict[str, object] = {"__name__": path}
    for block in blocks:
        exec(compile(block, path, "exec"), names)
