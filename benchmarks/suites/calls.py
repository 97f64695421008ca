"""How a timed call is made: as a CUDA graph, as an engine replays it, or without the lse."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def captured(call: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """`call(*args)` as a CUDA graph; each replay returns the same tensors."""
    call(*args)  # whatever is set up by a first call
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call(*args)

    def replay() -> Any:
        graph.replay()
        return result

    return replay


def first_result(call: Callable[..., Any]) -> Callable[..., Tensor]:
    """Of attention the output alone, without the log-sum-exp, which peers do not return."""
    return lambda *args: call(*args)[0]
