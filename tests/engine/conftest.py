"""A tiny model with a tokenizer, and an engine that must be empty in the end."""

import pytest
import torch

from tests.engine.serving import assert_empty, cpu_llm, tiny_with_tokenizer


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(directory, the model of transformers)"""
    torch.manual_seed(11)
    path = tmp_path_factory.mktemp("tiny")
    return path, tiny_with_tokenizer(path)


@pytest.fixture
def llm(tiny):
    engine = cpu_llm(tiny[0])
    yield engine
    assert_empty(engine)
