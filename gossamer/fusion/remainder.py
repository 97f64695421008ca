"""Who compiles what is left of a graph: Inductor, or nobody."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

REMAINDERS = ("auto", "inductor", "eager")
GRAPHS = ("reduce-overhead", "max-autotune")  # those with CUDA graphs
MODES = ("default", *GRAPHS, "max-autotune-no-cudagraphs")


def who_compiles(remainder: str, device: torch.device | None) -> str:
    """inductor or eager. auto: Inductor on a GPU.

    On a CPU Inductor needs a C++ compiler and takes long; what is left there is mostly GEMMs.
    """
    if remainder != "auto":
        return remainder
    return "eager" if device is None or device.type == "cpu" else "inductor"


def compile_rest(
    module: GraphModule,
    example_inputs: Sequence[Any],
    remainder: str,
    mode: str | None,
    device: torch.device | None,
) -> Callable[..., Any]:
    """The graph, by Inductor or node by node. mode: as torch.compile's, e.g. "reduce-overhead"."""
    if who_compiles(remainder, device) == "eager":
        return module
    import torch._inductor  # noqa: PLC0415 - a second of imports

    options = torch._inductor.list_mode_options(mode) if mode else None
    compiled: Callable[..., Any] = torch._inductor.compile(
        module, list(example_inputs), options=options
    )
    return compiled
