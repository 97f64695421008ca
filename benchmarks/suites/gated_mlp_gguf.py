"""gated_mlp_gguf against torch's MLP of the same weights as floats."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.suites.gemm_cases import TOLERANCE_16BIT
from benchmarks.suites.linear_gguf import random_blocks
from gossamer.bench.suite import Case, Suite, main, tensor_bytes
from gossamer.ops.checks import FLOAT_DTYPES
from gossamer.ops.gguf import dequantized

Args = tuple[Tensor, list[Tensor], str, list[Tensor], str, None, None]
MLPS = ((1536, 576), (8192, 2048))  # of SmolLM2 135M and Llama 3.2 1B


def _mlp(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, down)


def _eager(
    x: Tensor, gate_up: list[Tensor], kind: str, down: list[Tensor], *_: object
) -> Callable[[], Tensor]:
    weights = [dequantized(rows[0], kind).to(x.dtype) for rows in (gate_up, down)]
    return lambda: _mlp(x, *weights)


def _oracle(x: Tensor, gate_up: list[Tensor], kind: str, down: list[Tensor], *_: object) -> Tensor:
    return _mlp(x.double(), *(dequantized(rows[0], kind).double() for rows in (gate_up, down)))


def _case(rows: int, m: int, k: int, kind: str, dtypes: tuple[torch.dtype, ...]) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> Args:
        x = torch.randn(rows, k, dtype=dtype, device=device) / k**0.5
        gate_up, down = (random_blocks(*shape, kind, device) for shape in ((2 * m, k), (k, m)))
        return x, [gate_up], kind, [down], kind, None, None

    return Case(
        shape=(rows, m, k),
        make_args=make_args,
        peers={},
        adapted={"eager": _eager},
        bytes=lambda x, gate_up, _, down, *__: 2 * tensor_bytes(x) + tensor_bytes(*gate_up, *down),
        flops=6 * rows * m * k,
        variant=kind,
        dtypes=dtypes,
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    if quick:
        yield _case(4, 192, 96, "q4_1", FLOAT_DTYPES)
        return
    for m, k in MLPS if device == "cpu" else ():
        for rows in (1, 4, 16, 512):
            yield _case(rows, m, k, "q4_1", (torch.float32,))


SUITE = Suite("gated_mlp_gguf", _cases, oracle=_oracle, tolerance=TOLERANCE_16BIT)

if __name__ == "__main__":
    main(SUITE)
