"""A tiny model behind a server, made once."""

import importlib.util

import pytest
import torch

PACKAGES = ("fastapi", "uvicorn", "prometheus_client", "httpx", "transformers", "llguidance")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
if MISSING:  # pip install 'gossamer[serve,models,structured]'
    collect_ignore_glob = ["test_*.py"]
else:
    from tests.engine.serving import tiny_with_tokenizer
    from tests.server.live import SPARSE, serving


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    torch.manual_seed(11)
    path = tmp_path_factory.mktemp("server") / "tiny"
    path.mkdir()
    tiny_with_tokenizer(path, head_dim=32)
    return path


@pytest.fixture(scope="session")
def longer(tmp_path_factory):
    """A model of 4,096 positions, whose vocabulary has an end of line and no backtick."""
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("tools") / "tiny"
    path.mkdir()
    tiny_with_tokenizer(path, head_dim=32, max_position_embeddings=4096)
    text = (path / "tokenizer.json").read_text()
    changed = text.replace('"`":', r'"\n":').replace('"Regex": "."', r'"Regex": "[\\s\\S]"')
    assert changed != text
    (path / "tokenizer.json").write_text(changed)
    return path


@pytest.fixture(scope="session")
def shared(tiny):
    """For tests that leave a server as they found it: a dense and a sparse cache."""
    with serving(tiny, ("dense", SPARSE)) as live:
        yield live


@pytest.fixture
def live(shared):
    yield shared
    shared.assert_empty()
