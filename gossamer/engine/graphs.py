"""Decode steps as CUDA graphs: one per batch size, captured at the start; see warm_up.py."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Token ids, positions and table rows [3, batch], and the kind of batch -> logits [batch, vocab], or
# hidden states on the ranks that compute no logits.
Forward = Callable[[Tensor, int], Tensor]

WARM_UPS = 2  # libraries choose kernels and allocate in the first calls, which a capture must not


@dataclass(frozen=True, eq=False)
class _Graph:
    graph: torch.cuda.CUDAGraph
    numbers: Tensor
    output: Tensor


class DecodeGraphs:
    """Replays `forward` for batches of single tokens; smaller batches are filled with padding.

    padding: the table row of tokens that are not there. Batches of a kind (AdapterRows.kinds) have
    graphs of their own.
    """

    def __init__(self, forward: Forward, device: torch.device, padding: int) -> None:
        self._forward, self._device, self._padding = forward, device, padding
        self._graphs: dict[tuple[int, int], _Graph] = {}  # by size and kind
        self._pool: Any = None  # graphs never run at once, so they share memory
        self._stream: torch.cuda.Stream | None = None  # one, as cuBLAS keeps 32 MB for each

    def run(self, ids: list[int], positions: list[int], rows: list[int], kind: int = 0) -> Tensor:
        """The outputs of the batch; valid until the next call."""
        size = captured_size(len(ids))
        rest = size - len(ids)
        numbers = torch.tensor(
            [ids + [0] * rest, positions + [0] * rest, rows + [self._padding] * rest]
        ).pin_memory()
        if (size, kind) not in self._graphs:  # more than at most: a direct user of the runner
            self.capture(size, kind)
        captured = self._graphs[size, kind]
        captured.numbers.copy_(numbers, non_blocking=True)
        captured.graph.replay()
        return captured.output[: len(ids)]

    def capture(self, size: int, kind: int = 0) -> None:
        """A batch of padding, which writes to no page, of one of captured_sizes()."""
        padding = [[0] * size, [0] * size, [self._padding] * size]
        numbers = torch.tensor(padding, device=self._device)
        stream = self._stream = self._stream or torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream), torch.inference_mode():
            for _ in range(WARM_UPS):
                self._forward(numbers, kind)
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(graph, pool=self._pool, stream=stream):
            output = self._forward(numbers, kind)
        self._pool = self._pool or graph.pool()
        self._graphs[size, kind] = _Graph(graph, numbers, output)


def captured_size(batch: int) -> int:
    """The batch sizes that have graphs: 1, 2, 4, 8, then multiples of 8, from 64 on of 32."""
    if batch <= 8:
        return 1 << (batch - 1).bit_length()
    step = 8 if batch <= 64 else 32
    return -(-batch // step) * step


def captured_sizes(most: int) -> list[int]:
    """Those that batches of up to `most` need, ascending."""
    return sorted({captured_size(batch) for batch in range(1, most + 1)})
