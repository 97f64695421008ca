"""Hugging Face transformers: a sparse KV cache for `generate`, masks for encoders, loading.

Needs the `models` extra; importing this package does not. transformers is imported with the first
name that needs it, and nothing in it is changed: attention implementations are registered.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gossamer.integrations.transformers.attention_function import (
    AttentionFunction,
    attention_function,
    causal_attention,
)
from gossamer.integrations.transformers.loading import load_model
from gossamer.integrations.transformers.support import kv_shape
from gossamer.kv.folding import fingerprint

if TYPE_CHECKING:
    from gossamer.integrations.transformers.attention import register_attention
    from gossamer.integrations.transformers.cache import SparseCache
    from gossamer.integrations.transformers.context import use_gossamer
    from gossamer.integrations.transformers.masked import (
        set_attention_pattern,
        use_masked_attention,
    )

__all__ = [
    "AttentionFunction",
    "SparseCache",
    "attention_function",
    "causal_attention",
    "fingerprint",
    "kv_shape",
    "load_model",
    "register_attention",
    "set_attention_pattern",
    "use_gossamer",
    "use_masked_attention",
]

_LATER = {
    "SparseCache": "cache",
    "register_attention": "attention",
    "use_gossamer": "context",
    "set_attention_pattern": "masked",
    "use_masked_attention": "masked",
}


def __getattr__(name: str) -> Any:
    """The names that need transformers, imported when they are asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
