"""Who compiles what is left of a graph: Inductor, or nobody."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

log = logging.getLogger("gossamer.fusion")

REMAINDERS = ("auto", "inductor", "eager")


def compile_rest(
    module: GraphModule,
    example_inputs: Sequence[Any],
    remainder: str,
    mode: str | None,
    device: torch.device | None,
) -> Callable[..., Any]:
    """The graph, by Inductor or node by node. auto: Inductor on a GPU.

    On a CPU Inductor needs a C++ compiler and takes long; what is left there is mostly GEMMs.
    mode: as torch.compile's, e.g. "reduce-overhead" for CUDA graphs.
    """
    if remainder == "auto":
        remainder = "inductor" if device is None or device.type == "cuda" else "eager"
    if remainder == "eager":
        return module
    import torch._inductor  # noqa: PLC0415 - a second of imports

    options = torch._inductor.list_mode_options(mode) if mode else None
    compiled: Callable[..., Any] = torch._inductor.compile(
        module, list(example_inputs), options=options
    )
    return compiled
