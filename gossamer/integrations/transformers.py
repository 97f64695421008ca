"""Hugging Face transformers: load a model, watch or replace its attention.

Needs the `models` extra; importing this file does not. Made for decoders like Llama, Mistral,
Qwen2 and Qwen3.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.kv.extras import import_extra
from gossamer.kv.folding import attention_layers, fingerprint, model_name
from gossamer.kv.shape import KVShape

__all__ = [
    "AttentionFunction",
    "attention_function",
    "causal_attention",
    "fingerprint",
    "kv_shape",
    "load_model",
]

# fn(layer_index, query [B, Hq, T, D], key [B, Hk, S, D], value [B, Hk, S, D], scaling)
# -> [B, Hq, T, D]. Query and key are after RoPE; causal masking is the function's own job.
AttentionFunction = Callable[[int, Tensor, Tensor, Tensor, float], Tensor]

_IMPLEMENTATION = "gossamer"  # the name under which transformers finds `_dispatch`
# What models hand on to attention and causal attention does not depend on; and other keywords that
# it does not depend on while they have this value. Anything else (softcap, s_aux, ...) is refused.
_IGNORED = {"position_ids", "cache_position", "use_cache", "token_type_ids"}
_IGNORED |= {"output_hidden_states", "output_router_logits", "num_items_in_batch"}
_NEUTRAL = {"dropout": 0.0, "is_causal": True, "output_attentions": False}
_functions: WeakKeyDictionary[nn.Module, list[AttentionFunction]] = WeakKeyDictionary()


def load_model(
    path: str | Path, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> tuple[Any, Any]:
    """(model, tokenizer) of a local Hugging Face directory or a .gguf file; never downloads.

    Raises FileNotFoundError when there is nothing at `path`, ImportError when the `models` extra is
    not installed, and ValueError for a device that is not there and for anything that cannot be
    loaded completely, with every weight in its place and none left over.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such model directory or .gguf file")
    if path.is_file() and path.suffix != ".gguf":
        raise ValueError(f"{path}: must be a directory or a .gguf file")
    _check_device(device)
    transformers = import_extra("transformers")
    where: dict[str, Any] = {"local_files_only": True}
    if path.is_file():
        for module in ("gguf", "accelerate"):  # what transformers reads GGUF files with
            import_extra(module)
        where["gguf_file"] = path.name
    folder = str(path.parent if path.is_file() else path)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **where)
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder, **where, dtype=dtype, output_loading_info=True
        )
    except Exception as error:  # the loaders raise whatever they trip over
        problem = f"{type(error).__name__}: {_first_line(error)}"
        raise ValueError(f"{path}: cannot be loaded: {problem}") from error
    incomplete = sorted(map(str, {*report["missing_keys"], *report["mismatched_keys"]}))
    if incomplete:
        raise ValueError(f"{path}: weights missing or of another shape: {', '.join(incomplete)}")
    if unexpected := sorted(map(str, report["unexpected_keys"])):
        raise ValueError(f"{path}: weights its config has no place for: {', '.join(unexpected)}")
    model.name_or_path = str(path)
    return model.eval().to(device), tokenizer


def kv_shape(model: Any) -> KVShape:
    """The dimensions of the model's attention, from its config."""
    config = model.config
    heads = config.num_attention_heads
    return KVShape(
        layers=config.num_hidden_layers,
        query_heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
    )


@contextmanager
def attention_function(model: Any, fn: AttentionFunction) -> Iterator[None]:
    """Every attention layer of `model` calls `fn` inside the context; the innermost one wins.

    `fn` is not told about padding, sliding windows, or anything that makes attention other than
    plain and causal (softcap, sinks, dropout, packed sequences): a batch with padding, a sequence
    longer than the model's sliding window, and such attention are a ValueError. Raises ValueError
    for a model without attention layers that transformers can redirect.
    """
    transformers = import_extra("transformers")
    transformers.AttentionInterface.register(_IMPLEMENTATION, _dispatch)
    transformers.AttentionMaskInterface.register(_IMPLEMENTATION, _no_mask)
    layers = attention_layers(model)
    previous = model.config._attn_implementation
    for layer in layers:
        _functions.setdefault(layer, []).append(fn)
    try:
        model.set_attn_implementation(_IMPLEMENTATION)
        if model.config._attn_implementation != _IMPLEMENTATION:
            raise ValueError(f"{model_name(model)} does not use transformers' AttentionInterface")
        yield
    finally:
        for layer in layers:
            _functions[layer].pop()
        model.set_attn_implementation(previous)


def _dispatch(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in place of its own attention; it wants [B, T, Hq, D] back."""
    functions = _functions.get(module)
    if not functions:
        raise ValueError("a model that shares this model's config runs inside attention_function")
    if attention_mask is not None:
        raise ValueError("attention_function takes no attention mask")
    others.setdefault("is_causal", getattr(module, "is_causal", None))
    for name, argument in others.items():
        neutral = argument is None or (name in _NEUTRAL and argument == _NEUTRAL[name])
        if name not in _IGNORED and not neutral:
            raise ValueError(f"the model's attention has {name}; attention_function supports none")
    if sliding_window is not None and key.shape[2] > sliding_window:
        raise ValueError(
            f"{key.shape[2]} tokens, and the model's sliding window is {sliding_window}; "
            "attention_function supports no longer sequences than that"
        )
    output = functions[-1](module.layer_idx, query, key, value, scaling)
    if output.shape != query.shape:
        raise ValueError(
            f"the attention function returned {list(output.shape)}; must be {list(query.shape)}"
        )
    return output.transpose(1, 2).contiguous(), None


def _no_mask(
    *_: Any, attention_mask: Tensor | None = None, allow_is_causal_skip: bool = True, **rest: Any
) -> None:
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ValueError("the batch has padding, of which attention_function knows nothing")
    if not allow_is_causal_skip and rest.get("q_length") != 1:  # 1: decoding with a static cache
        raise ValueError("the model's mask is not plainly causal (packed sequences?)")


def causal_attention(
    layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
) -> Tensor:
    """Plain causal attention of a whole sequence (no cache), as an AttentionFunction."""
    if query.shape[2] != key.shape[2]:
        raise ValueError(f"{query.shape[2]} queries and {key.shape[2]} keys; must be as many")
    return F.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=True
    )


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch without CUDA
        raise ValueError(f"device {device!r} cannot be used: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")
