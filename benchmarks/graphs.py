"""Calls as CUDA graphs: what an engine replays in every decode step."""

from collections.abc import Callable
from typing import Any

import torch


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
