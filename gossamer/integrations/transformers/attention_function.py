"""Watch or replace the attention of a model that runs whole sequences, without a cache."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.integrations.transformers.implementation import implementation, register
from gossamer.integrations.transformers.keywords import refuse_other_masks, refuse_others
from gossamer.kv.folding import attention_layers

# fn(layer_index, query [B, Hq, T, D], key [B, Hk, S, D], value [B, Hk, S, D], scaling)
# -> [B, Hq, T, D]. Query and key are after RoPE; causal masking is the function's own job.
AttentionFunction = Callable[[int, Tensor, Tensor, Tensor, float], Tensor]

NAME = "gossamer_function"  # under which transformers finds `_dispatch`
_functions: WeakKeyDictionary[nn.Module, list[AttentionFunction]] = WeakKeyDictionary()


@contextmanager
def attention_function(model: Any, fn: AttentionFunction) -> Iterator[None]:
    """Every attention layer of `model` calls `fn` inside the context; the innermost one wins.

    `fn` is not told about padding, sliding windows, or anything that makes attention other than
    plain and causal (softcap, sinks, dropout, packed sequences): a batch with padding, a sequence
    longer than the model's sliding window, and such attention are a ValueError. Raises ValueError
    for a model without attention layers that transformers can redirect.
    """
    register(NAME, _dispatch, _no_mask)
    layers = attention_layers(model)
    for layer in layers:
        _functions.setdefault(layer, []).append(fn)
    try:
        with implementation(model, NAME):
            yield
    finally:
        for layer in layers:
            _functions[layer].pop()


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
    refuse_others(others, module, "attention_function")
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


def _no_mask(*_: Any, attention_mask: Tensor | None = None, **rest: Any) -> None:
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ValueError("the batch has padding, of which attention_function knows nothing")
    refuse_other_masks(rest)


def causal_attention(
    layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
) -> Tensor:
    """Plain causal attention of a whole sequence (no cache), as an AttentionFunction."""
    if query.shape[2] != key.shape[2]:
        raise ValueError(f"{query.shape[2]} queries and {key.shape[2]} keys; must be as many")
    return F.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=True
    )
