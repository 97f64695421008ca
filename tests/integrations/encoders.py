"""Tiny random encoders of transformers."""

from typing import Any

import pytest

SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "pad_token_id": 0,
}


def tiny_bert(name: str = "Bert", **settings: Any) -> Any:
    """Of the class name + Model; heads of 32."""
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **settings})
    return getattr(transformers, f"{name}Model")(config).eval()
