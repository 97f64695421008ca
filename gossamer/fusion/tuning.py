"""Tuning a model at one shape: its graphs are recorded, tuned, and their plans kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from gossamer.fusion.backend import Options, subject_of
from gossamer.fusion.cache import PlanCache
from gossamer.fusion.capture import NotFusibleError, capture, copied
from gossamer.fusion.timing import Show, Timer
from gossamer.fusion.tuner import Tuned, Tuner

Recorded = tuple[GraphModule, tuple[Any, ...]]


@dataclass(frozen=True)
class Outcome:
    """What tuning a model gave: of each of its graphs, and whether the plans are on disk."""

    graphs: tuple[Tuned, ...]
    kept: bool


def tune(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Options,
    budget: float,
    *,
    seed: int = 0,
    show: Show = lambda share, what: None,
    timer: Timer | None = None,
    cache: PlanCache | None = None,
) -> Outcome:
    """Tune the graphs of `model(*args, **kwargs)` for `budget` seconds altogether.

    The search is the same for the same seed and the same times. Raises ValueError for a budget that
    is not positive, RuntimeError for training.
    """
    if not budget > 0:
        raise ValueError(f"budget is {budget}; must be above 0 seconds")
    found: list[Tuned] = []
    kept = True
    graphs = _fusible(record(model, args, kwargs), options)
    for module, inputs in graphs:
        share = budget / len(graphs)
        tuned = Tuner(module, inputs, options, share, seed, show, timer).run()
        found.append(tuned)
        captured = capture(module, inputs, options.mask, attention=options.attention)
        subject = subject_of(captured, options)
        kept = (cache or PlanCache()).put(subject, tuned.plan, tuned.facts) and kept
    return Outcome(tuple(found), kept)


def record(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Recorded]:
    """The graphs of a call, with their inputs."""
    graphs: list[Recorded] = []

    def backend(module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.append((copied(module), tuple(example_inputs)))
        return module.forward

    compiled = torch.compile(model, backend=backend, dynamic=False)
    with torch.no_grad():
        compiled(*args, **kwargs)
    return graphs


def _fusible(graphs: Sequence[Recorded], options: Options) -> list[Recorded]:
    """Those with something to tune."""
    found = []
    for module, inputs in graphs:
        try:
            captured = capture(module, inputs, options.mask, attention=options.attention)
        except NotFusibleError:
            continue
        if captured.operators:
            found.append((module, inputs))
    return found
