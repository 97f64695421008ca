"""gated_mlp against eager PyTorch: three GEMMs, or two with gate and up in one."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.suites.gemm_cases import LLAMA_1B, LLAMA_8B, SMOLLM2, TOLERANCE, matrix
from gossamer.bench.suite import Case, Suite, main, tensor_bytes
from gossamer.ops.checks import FLOAT_DTYPES


def _eager(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2)
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def _fused(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, down)


def _case(rows: int, size: tuple[int, int], dtypes: tuple[torch.dtype, ...]) -> Case:
    k, hidden = size

    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(rows, k, dtype=dtype, device=device)
        return x, matrix(2 * hidden, k, dtype, device), matrix(k, hidden, dtype, device)

    return Case(
        shape=(rows, k, hidden),
        make_args=make_args,
        peers={"eager": _eager, "eager, gate and up in one": _fused},
        bytes=lambda x, gate_up, down: 2 * tensor_bytes(x) + tensor_bytes(gate_up, down),
        flops=6 * rows * k * hidden,
        dtypes=dtypes,
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    if quick:
        yield _case(4, SMOLLM2, FLOAT_DTYPES)
        return
    if device == "cpu":
        for size in (SMOLLM2, LLAMA_1B):
            for rows in (1, 8, 128):
                yield _case(rows, size, (torch.float32, torch.bfloat16))
        return
    for rows in (1, 2, 4, 8, 16, 32, 64, 256, 2048, 8192):
        yield _case(rows, LLAMA_8B, (torch.bfloat16,))


SUITE = Suite("gated_mlp", _cases, tolerance=TOLERANCE, best="cpu")

if __name__ == "__main__":
    main(SUITE)
