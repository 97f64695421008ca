"""Which attention implementation a model uses: set it, and put back what was there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gossamer.kv.extras import import_extra
from gossamer.kv.folding import model_name


def register(name: str, attention: Callable[..., Any], mask: Callable[..., Any]) -> None:
    """Make `attn_implementation=name` known to transformers, through its public interfaces."""
    transformers = import_extra("transformers")
    transformers.AttentionInterface.register(name, attention)
    transformers.AttentionMaskInterface.register(name, mask)


@contextmanager
def implementation(model: Any, name: str) -> Iterator[None]:
    """`model` uses the implementation `name` inside; every config gets its own back.

    Raises ValueError for a model whose attention transformers cannot redirect.
    """
    before = [(config, config._attn_implementation_internal) for config in _configs(model)]
    try:
        model.set_attn_implementation(name)
        if model.config._attn_implementation != name:
            raise ValueError(f"{model_name(model)} does not use transformers' AttentionInterface")
        yield
    finally:
        for config, previous in before:
            config._attn_implementation_internal = previous


def _configs(model: Any) -> list[Any]:
    """All configs of the model and of the models in it, each once."""
    found: dict[int, Any] = {}
    waiting = [module.config for module in model.modules() if hasattr(module, "config")]
    while waiting:
        config = waiting.pop()
        if id(config) in found or not hasattr(config, "_attn_implementation_internal"):
            continue
        found[id(config)] = config
        parts = (getattr(config, key, None) for key in getattr(config, "sub_configs", ()))
        waiting += [part for part in parts if part is not None]
    return list(found.values())
