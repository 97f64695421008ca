"""A model that generates with a sparse cache, for as long as a `with` block lasts."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

from torch import Tensor

from gossamer.integrations.transformers.attention import NAME
from gossamer.integrations.transformers.auto import settled
from gossamer.integrations.transformers.cache import SparseCache
from gossamer.integrations.transformers.identity import check_same
from gossamer.integrations.transformers.implementation import implementation
from gossamer.integrations.transformers.padding import check_left
from gossamer.integrations.transformers.support import check_dtype
from gossamer.kv import Calibration, KVConfig
from gossamer.kv.folding import attention_layers, model_name


@contextmanager
def use_gossamer(
    model: Any,
    kv: str | KVConfig = "dense",
    *,
    calibration: Calibration | str | PathLike[str] | None = None,
    rollback: int = 0,
) -> Iterator[None]:
    """Inside, `model.generate` (and `model(...)`) get a new SparseCache where none is given.

    Arguments as of SparseCache; kv may be a preset like "auto" too (see gossamer.kv.auto). The
    attention implementation, `generate` and hooks are as before afterwards; weights are never
    touched. Raises ValueError, before anything is computed, for a model that is not supported, its
    type or devices, and a calibration of another model.
    """

    def new_cache() -> SparseCache:
        return SparseCache(model.config, kv, calibration=known, rollback=rollback)

    if not callable(getattr(model, "generate", None)):
        raise ValueError(
            f"{model_name(model)} does not generate; must be a causal language model, or see "
            "use_masked_attention for encoders"
        )
    kv, known = settled(model, kv, calibration)
    known = new_cache().calibration  # checks everything; a file is read once
    _check_model(model, known)
    if "generate" in vars(model):
        raise ValueError(
            f"{model_name(model)}.generate is replaced already (use_gossamer inside use_gossamer?)"
        )
    with implementation(model, NAME):
        hook = model.register_forward_pre_hook(_with_cache(new_cache), with_kwargs=True)
        try:
            model.generate = _generate(model.generate, new_cache)
            yield
        finally:
            vars(model).pop("generate", None)
            hook.remove()


def _check_model(model: Any, calibration: Calibration | None) -> None:
    check_dtype(model.dtype)
    devices = sorted({str(p.device) for p in model.parameters()})
    if len(devices) != 1:
        raise ValueError(
            f"{model_name(model)} is on {', '.join(devices)}; must be on one device: "
            f"model.to({devices[0]!r})"
        )
    if calibration is None:
        return
    layers = attention_layers(model)
    for index, sketch in enumerate(calibration.manifest.fingerprint.k_sketches):
        check_same(sketch, layers[index], index)


def _check_cache(cache: Any) -> None:
    if not isinstance(cache, SparseCache):
        raise ValueError(
            f"past_key_values is a {type(cache).__name__}; must be a SparseCache, or left out, "
            "inside use_gossamer"
        )


def _generate(
    original: Callable[..., Any], new_cache: Callable[[], SparseCache]
) -> Callable[..., Any]:
    """`generate` that checks the padding first and brings a cache."""

    def generate(*args: Any, **kwargs: Any) -> Any:
        mask = kwargs.get("attention_mask")
        if isinstance(mask, Tensor) and mask.dim() == 2:
            cache = kwargs.get("past_key_values")
            seen = 0 if cache is None else cache.get_seq_length()
            if mask.shape[1] > seen:
                check_left(mask[:, seen:])
        if kwargs.get("past_key_values") is not None:
            _check_cache(kwargs["past_key_values"])
        elif kwargs.get("use_cache") is not False:
            kwargs["past_key_values"] = new_cache()
        return original(*args, **kwargs)

    return generate


def _with_cache(new_cache: Callable[[], SparseCache]) -> Callable[..., Any]:
    """For calls of the model itself: the same before its forward pass."""

    def hook(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = inspect.signature(model.forward).bind_partial(*args, **kwargs)
        cache = given.arguments.get("past_key_values")
        if cache is not None:
            _check_cache(cache)
        elif given.arguments.get("use_cache") is not False:
            given.arguments["past_key_values"] = new_cache()
        return given.args, given.kwargs

    return hook
