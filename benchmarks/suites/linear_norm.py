"""linear_norm against eager PyTorch, on the output and the down projection of a decoder block."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.suites.gemm_cases import LLAMA_1B, LLAMA_8B, SMOLLM2, TOLERANCE, matrix
from gossamer.bench.suite import Case, Suite, main, tensor_bytes
from gossamer.ops.checks import FLOAT_DTYPES


def _eager(
    x: Tensor, weight: Tensor, residual: Tensor, scale: Tensor, bias: Tensor | None,
    shift: Tensor | None, norm: str, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    total = F.linear(x, weight, bias) + residual
    if norm == "rms":
        return F.rms_norm(total, scale.shape, scale, eps), total
    return F.layer_norm(total, scale.shape, scale, shift, eps), total


def _case(rows: int, k: int, n: int, norm: str, dtypes: tuple[torch.dtype, ...]) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> tuple[object, ...]:
        new = partial(torch.randn, dtype=dtype, device=device)
        # Layer norms come with biases, RMS norms without.
        biases = (None, None) if norm == "rms" else (new(n), new(n))
        return new(rows, k), matrix(n, k, dtype, device), new(rows, n), new(n), *biases, norm, 1e-5

    return Case(
        shape=(rows, n, k),
        make_args=make_args,
        peers={"eager": _eager},
        bytes=lambda x, weight, residual, *_: tensor_bytes(x, weight) + 3 * tensor_bytes(residual),
        flops=2 * rows * n * k,
        variant=norm,
        dtypes=dtypes,
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    both = (torch.float32, torch.bfloat16)
    if quick:
        yield _case(4, 576, 576, "rms", FLOAT_DTYPES)
        return
    if device == "cpu":
        for k, hidden in (SMOLLM2, LLAMA_1B):
            for rows in (1, 8, 128):
                yield _case(rows, hidden, k, "rms", both)
                yield _case(rows, k, k, "layer", both)
        return
    k, hidden = LLAMA_8B
    for rows in (1, 16, 256, 4096):
        yield _case(rows, k, k, "rms", (torch.bfloat16,))
        yield _case(rows, hidden, k, "layer", (torch.bfloat16,))


SUITE = Suite("linear_norm", _cases, tolerance=TOLERANCE)

if __name__ == "__main__":
    main(SUITE)
