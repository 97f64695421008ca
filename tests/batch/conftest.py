"""A tiny model whose tokens are words, made once."""

import importlib.util

import pytest
import torch

from tests.cli.models import tiny_with_words

PACKAGES = ("fastapi", "prometheus_client", "httpx", "transformers")
if any(importlib.util.find_spec(name) is None for name in PACKAGES):
    collect_ignore_glob = ["test_*.py"]  # pip install 'gossamer[serve,models]'


@pytest.fixture(scope="session")
def words(tmp_path_factory):
    torch.manual_seed(5)
    return tiny_with_words(tmp_path_factory.mktemp("batch") / "words")
