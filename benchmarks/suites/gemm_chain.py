"""gemm_chain against eager PyTorch, on the MLPs of models that have no gate."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.suites.gemm_cases import LLAMA_1B, SMOLLM2, TOLERANCE, matrix
from gossamer.bench.suite import Case, Suite, main, tensor_bytes
from gossamer.ops.checks import FLOAT_DTYPES

GPT = (4096, 16_384)


def _eager(x: Tensor, w1: Tensor, w2: Tensor, b1: Tensor, b2: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)


def _case(rows: int, size: tuple[int, int], dtypes: tuple[torch.dtype, ...]) -> Case:
    k, hidden = size

    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
        x = torch.randn(rows, k, dtype=dtype, device=device)
        weights = matrix(hidden, k, dtype, device), matrix(k, hidden, dtype, device)
        return x, *weights, *(torch.randn(n, dtype=dtype, device=device) for n in (hidden, k))

    return Case(
        shape=(rows, k, hidden),
        make_args=make_args,
        peers={"eager": _eager},
        bytes=lambda x, *others: 2 * tensor_bytes(x) + tensor_bytes(*others),
        flops=4 * rows * k * hidden,
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
    for rows in (1, 16, 64, 512, 4096):
        yield _case(rows, GPT, (torch.bfloat16,))


SUITE = Suite("gemm_chain", _cases, tolerance=TOLERANCE, best="cpu")

if __name__ == "__main__":
    main(SUITE)
