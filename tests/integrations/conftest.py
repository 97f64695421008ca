"""The built-in model, loaded once for all tests here: that takes longer than most of them."""

import pytest

from gossamer.integrations.transformers import load_model
from tests.engine.serving import need_smollm2
from tests.integrations.generating import endless


@pytest.fixture(scope="session")
def smollm2():
    """(model, tokenizer); the model has no token to end with."""
    model, tokenizer = load_model(need_smollm2())
    return endless(model), tokenizer
