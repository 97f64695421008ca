"""Measure a transformers model on a text: moments of q, k and v, and the gradient at k and v."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gossamer._version import __version__
from gossamer.integrations.transformers import (
    attention_function,
    causal_attention,
    fingerprint,
    kv_shape,
)
from gossamer.integrations.windows import TURNS, Window, turned, windows_of
from gossamer.kv.calibration import Calibration
from gossamer.kv.coding import CENTRED, Rows, Sensitivity, coded_basis
from gossamer.kv.config import KVConfig
from gossamer.kv.extras import import_extra
from gossamer.kv.folding import model_name
from gossamer.kv.gradients import SHORTEST_WINDOW, Gradients
from gossamer.kv.manifest import Manifest
from gossamer.kv.moments import Bases, Moments
from gossamer.kv.shape import KVShape

Progress = Callable[[int], None]
CODED_LABELS = "model"
WINDOW = KVConfig()  # which keys a query sees compressed; the gradient is of those


@torch.no_grad()
def measure_moments(
    model: Any,
    token_ids: Sequence[int] | Tensor,
    *,
    context: int = 2048,
    on_window: Progress | None = None,
    rows: Mapping[str, Rows] | None = None,
) -> Moments:
    """Second moments of q, k and v over the tokens, in independent windows of `context` tokens,
    placed over the model's positions (window_starts).

    on_window is called with the number of tokens after each window. rows: of "k" and "v", to which
    those of the text are added. Raises ValueError when there are fewer tokens than the head
    dimension, and for a context the model does not have.
    """
    moments = Moments(kv_shape(model))
    shifts: tuple[int, ...] = ()

    def watch(layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        moments.add(layer, query[0], key[0], value[0])
        if rows is not None:
            rows["k"].add(layer, turned(model, key[0], shifts))
            rows["v"].add(layer, value[0])
        return causal_attention(layer, query, key, value, scaling)

    with attention_function(model, watch):
        for window in windows_of(model, token_ids, context):
            shifts = window.shifts
            model.base_model(**window.inputs, use_cache=False)  # without the logits
            if on_window is not None:
                on_window(len(window.ids))
    return moments


def measure_gradients(
    model: Any,
    token_ids: Sequence[int] | Tensor,
    *,
    context: int = 2048,
    on_window: Progress | None = None,
    sensitivities: Mapping[str, Sensitivity] | None = None,
    labels: str = "text",
) -> Gradients:
    """Where the loss is sensitive to K, in windows as in measure_moments; it takes longer.

    sensitivities: of "k" and "v", to which those of the text are added. labels: what the loss is
    of, the "text" or tokens drawn by the "model" itself. Raises ValueError as measure_moments does,
    and for windows in which no key is compressed.
    """
    shape = kv_shape(model)
    gradients = Gradients(shape)
    windows = [w for w in windows_of(model, token_ids, context) if len(w.ids) >= SHORTEST_WINDOW]
    if not windows:
        raise ValueError(
            f"context is {context} and there are {len(token_ids)} tokens; "
            f"both must be at least {SHORTEST_WINDOW}"
        )
    for window in windows:
        found = _gradients_at(model, window, shape, labels)
        for layer, (k, v, k_gradient, v_gradient) in enumerate(found):
            gradients.add(layer, k_gradient)
            if sensitivities is not None:
                turns = (turned(model, x, window.shifts) for x in (k, k_gradient))
                sensitivities["k"].add(layer, *turns)
                sensitivities["v"].add(layer, v, v_gradient)
        if on_window is not None:
            on_window(len(window.ids))
    return gradients


def _gradients_at(
    model: Any, window: Window, shape: KVShape, labels: str = "text"
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Of each layer k and v [Hk, T, D], and the gradients of the window's loss by them, where they
    are seen compressed.
    """
    tokens = window.ids
    positions = torch.arange(len(tokens), device=tokens.device)
    near = WINDOW.sees_dense(positions[:, None], positions)
    future = positions > positions[:, None]
    size = (2 * shape.layers, shape.kv_heads, len(tokens), shape.head_dim)
    offsets = list(torch.zeros(size, device=model.device))  # of K and V of the first layer, ...
    seen: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        seen[layer] = key[0].detach(), value[0].detach()
        moved = (x.to(key.dtype) for x in offsets[2 * layer : 2 * layer + 2])
        # Scores of all pairs are large: they are computed again for the backward pass.
        inputs = (query, key, value, *moved, scaling, near, future)
        output: Tensor = checkpoint(_attention_with_offsets, *inputs, use_reentrant=False)
        return output

    with _only_gradients_of(model, offsets), attention_function(model, attend):
        logits = model(**window.inputs, use_cache=False).logits[0, :-1].float()
        targets = tokens[1:] if labels == "text" else _drawn(logits.detach())
        loss = F.cross_entropy(logits, targets, reduction="sum")
        found = torch.autograd.grad(loss, offsets)
    for layer in range(shape.layers):
        yield *seen[layer], found[2 * layer], found[2 * layer + 1]


def _drawn(logits: Tensor) -> Tensor:
    """A token from each row of logits [T, V], the same ones every time."""
    generator = torch.Generator(logits.device).manual_seed(0)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)


def _attention_with_offsets(
    query: Tensor, key: Tensor, value: Tensor, k_offset: Tensor, v_offset: Tensor, scaling: float,
    near: Tensor, future: Tensor,
) -> Tensor:  # fmt: skip
    """Causal attention in which far K and V are moved by offsets [Hk, T, D], which are zero."""
    grouped = query.unflatten(1, (key.shape[1], -1)) * scaling  # [1, Hk, group, T, D]
    scores = grouped @ key.unsqueeze(2).mT
    moved = (grouped @ k_offset.unsqueeze(1).mT).masked_fill(near, 0)
    weights = (scores + moved).masked_fill(future, float("-inf")).softmax(-1)
    far = weights.masked_fill(near, 0) @ v_offset.unsqueeze(1)
    output: Tensor = (weights @ value.unsqueeze(2) + far).flatten(1, 2)
    return output


@contextmanager
def _only_gradients_of(model: Any, tensors: list[Tensor]) -> Iterator[None]:
    """Gradients are for these tensors; the parameters of the model get none."""
    wanted = [p for p in model.parameters() if p.requires_grad]
    for parameter in wanted:
        parameter.requires_grad_(False)
    for tensor in tensors:
        tensor.requires_grad_(True)
    try:
        with torch.enable_grad():
            yield
    finally:
        for parameter in wanted:
            parameter.requires_grad_(True)


# What policies rank K by (Policy.statistic) but for queries and gradients, which are there anyway.
# A new calibrated policy adds how its second moments [layers, kv_heads, D, D] are measured.
STATISTICS: dict[str, Callable[..., Tensor]] = {}


def measure(
    model: Any,
    token_ids: Sequence[int] | Tensor,
    *,
    context: int = 2048,
    progress: Callable[[str], Progress | None] = lambda name: None,
    own_text: bool = False,
) -> Bases:
    """Everything that a calibration keeps; the text is read once for each statistic.

    progress: called with a name, returns what is then called after each window (see
    measure_moments). own_text: the model drew these tokens itself, so that its own labels need no
    pass of their own. Raises ValueError as measure_moments and measure_gradients do.
    """
    shape = kv_shape(model)
    rows = {"k": Rows(shape, TURNS * len(token_ids)), "v": Rows(shape, len(token_ids))}
    moments = measure_moments(
        model, token_ids, context=context, on_window=progress("moments"), rows=rows
    )
    sensitivities = {name: Sensitivity(rows[name], centred) for name, centred in CENTRED.items()}
    gradients = measure_gradients(
        *(model, token_ids),
        context=context,
        on_window=progress("gradients"),
        sensitivities=sensitivities if own_text else None,
    )
    if not own_text:
        # By the model's own tokens, the gradients of a confident model do not vanish where it is
        # right.
        measure_gradients(
            *(model, token_ids),
            context=context,
            on_window=progress("codes"),
            sensitivities=sensitivities,
            labels=CODED_LABELS,
        )
    others = {
        name: statistic(model, token_ids, context=context, on_window=progress(name))
        for name, statistic in STATISTICS.items()
    }
    coded = {name: coded_basis(rows[name], sensitivities[name]) for name in CENTRED}
    return moments.finish({"gradients": gradients.mean(), **others}, coded)


def calibration_of(model: Any, bases: Bases, *, text_sha256: str = "") -> Calibration:
    """The bases together with where they come from."""
    manifest = Manifest(
        model=model_name(model),
        fingerprint=fingerprint(model),
        text_sha256=text_sha256,
        tokens=bases.tokens,
        gossamer=__version__,
        torch=torch.__version__,
        transformers=import_extra("transformers").__version__,
    )
    return Calibration.of(bases, manifest)


def calibrate(
    model: Any,
    token_ids: Sequence[int] | Tensor,
    *,
    context: int = 2048,
    text_sha256: str = "",
    on_window: Progress | None = None,
) -> Calibration:
    """Measure a model's bases and weights on the tokens of a text; see `measure`."""
    bases = measure(model, token_ids, context=context, progress=lambda name: on_window)
    return calibration_of(model, bases, text_sha256=text_sha256)
