"""The pieces of a step between its attentions as CUDA graphs, for steps that compute prompts.

What such a step attends to changes from step to step, but all else of a layer depends on the number
of tokens alone. A mixed step of a 135M model took 30 ms of the host (H200: some 300 launches, and
cuBLAS looks for a kernel anew for each number of rows) where the GPU had work for 4.
"""

import copy
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from gossamer.engine.graphs import WARM_UPS
from gossamer.models import Decoder, Projection
from gossamer.models.lora import NO_ADAPTER, LoRA

# attend(layer, q, k, v, out): out [T, Hq, D] is written. q, k and v as of Turned.
Attend = Callable[[int, Tensor, Tensor, Tensor, Tensor], object]
# (layer, projection) -> q [T, Hq, D], k and v [T, Hk, D] as they are stored and attended to.
Turned = Callable[[int, Projection], tuple[Tensor, Tensor, Tensor]]
# Slots of adapters [T] -> what the tokens' adapters do; None for steps without any.
Adapt = Callable[[Tensor], LoRA | None]

TRIES = 2  # of which the faster one counts
GAIN = 0.95  # of the time without graphs: above it, larger steps do not wait for the host either


class StepPieces:
    """Runs `decoder` for a number of tokens that is filled up to one of piece_sizes().

    Rows of tokens that are not there are computed, and nobody reads them.
    """

    def __init__(self, decoder: Decoder, turned: Turned, most: int) -> None:
        """most: tokens of a step."""
        config, device = decoder.config, decoder.device
        self._decoder, self._turned, self._most = decoder, turned, most
        self._adapt: Adapt = lambda slots: None
        heads, pairs = decoder.query_heads, decoder.kv_heads
        zeros = partial(torch.zeros, dtype=decoder.dtype, device=device)
        self._numbers = torch.zeros(2, most, dtype=torch.int64, device=device)
        self._slots = torch.full((most,), NO_ADAPTER, dtype=torch.int64, device=device)
        rows = zeros(most, heads + 2 * pairs, config.head_dim)
        self._rows = rows.split((heads, pairs, pairs), 1)
        self._out = zeros(most, heads, config.head_dim)
        self._hidden = zeros(most, config.hidden_size)
        self._graphs: dict[int, list[torch.cuda.CUDAGraph]] = {}  # by tokens
        self._pool: Any = None  # graphs never run at once, so they share memory
        self._stream: torch.cuda.Stream | None = None  # one, as cuBLAS keeps 32 MB for each

    def adapted(self, adapt: Adapt) -> Self:
        """The same for steps with adapters, without graphs so far; in the same memory."""
        other = copy.copy(self)
        other._adapt, other._graphs = adapt, {}
        return other

    def takes(self, tokens: int) -> bool:
        return tokens <= max(self._graphs, default=0)

    def run(
        self, ids: Tensor, positions: Tensor, attend: Attend, slots: Tensor | None = None
    ) -> Tensor:
        """Hidden states after the last layer, as Decoder.forward; valid until the next call."""
        tokens = len(ids)
        size = min(size for size in self._graphs if size >= tokens)
        self._numbers[0, :tokens], self._numbers[1, :tokens] = ids, positions
        if slots is not None:  # of tokens that are not there, too: they say which adapter it is
            self._slots[:tokens], self._slots[tokens:size] = slots, NO_ADAPTER
        q, k, v = (x[:tokens] for x in self._rows)
        *graphs, last = self._graphs[size]
        for layer, graph in enumerate(graphs):
            graph.replay()
            attend(layer, q, k, v, self._out[:tokens])
        last.replay()
        return self._hidden[:tokens]

    # ---- at the start --------------------------------------------------------------------

    def capture(self, size: int) -> bool:
        """Whether steps of `size` tokens are faster by graphs; if not, they have none.

        In ascending order: once they are not, larger ones will not be either.
        """
        stream = self._stream = self._stream or torch.cuda.Stream(self._decoder.device)
        stream.wait_stream(torch.cuda.current_stream(self._decoder.device))
        with torch.inference_mode(), torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                for _ in self._walk(size):
                    pass
            self._graphs[size] = list(self._captured(size))
            if GAIN * self._seconds(size, replayed=False) > self._seconds(size, replayed=True):
                return True
        del self._graphs[size]
        return False

    def _captured(self, size: int) -> Iterator[torch.cuda.CUDAGraph]:
        walk, more = self._walk(size), True
        while more:
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(pool=self._pool)
            try:
                more = next(walk, None) is not None
            finally:
                graph.capture_end()
            self._pool = self._pool or graph.pool()
            yield graph

    def _walk(self, size: int) -> Iterator[int]:
        """The forward pass; yields where layers attend."""
        decoder, ids, positions = self._decoder, *self._numbers[:, :size]
        lora = self._adapt(self._slots[:size])
        projection, residual = decoder.first(ids, positions, lora)
        last = len(decoder.weights.layers) - 1
        for layer in range(last):
            self._keep(layer, projection)
            yield layer
            out = self._out[:size]
            projection, residual = decoder.between(layer, out, residual, positions, lora)
        self._keep(last, projection)
        yield last
        self._hidden[:size] = decoder.last(self._out[:size], residual, lora)

    def _keep(self, layer: int, projection: Projection) -> None:
        for kept, made in zip(self._rows, self._turned(layer, projection), strict=True):
            kept[: len(made)] = made

    def _seconds(self, size: int, *, replayed: bool) -> float:
        """Of a step without attention."""
        found = []
        for _ in range(TRIES):
            torch.cuda.synchronize(self._decoder.device)
            start = time.perf_counter()
            if replayed:
                for graph in self._graphs[size]:
                    graph.replay()
            else:
                for _ in self._walk(size):
                    pass
            torch.cuda.synchronize(self._decoder.device)
            found.append(time.perf_counter() - start)
        return min(found)


def piece_sizes(most: int) -> list[int]:
    """Numbers of tokens that are captured, ascending: a third more each up to 64, then steps of an
    eighth to a quarter, as rows that are filled up are computed too."""
    sizes = [16, 32, 48, 64]
    while sizes[-1] < most:
        size = sizes[-1]
        sizes.append(size + max(16, 1 << (size.bit_length() - 3)))
    return [size for size in sizes if size < most] + [most]
