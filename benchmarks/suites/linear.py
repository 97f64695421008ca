"""linear against torch's, on the matrices of a decode step."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.bench.suite import Case, Suite, main, tensor_bytes

# [n, k] of qkv (or gate and up), down, and the head of SmolLM2-135M and Llama-3.2-1B
SMOLLM2 = ((960, 576), (3072, 576), (576, 1536), (49_152, 576))
LLAMA = ((3072, 2048), (16_384, 2048), (2048, 8192))


def _case(rows: int, n: int, k: int) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
        x = torch.randn(rows, k, dtype=dtype, device=device)
        return x, torch.randn(n, k, dtype=dtype, device=device) / k**0.5

    return Case(
        shape=(rows, n, k),
        make_args=make_args,
        peers={"eager": F.linear},
        bytes=lambda x, weight: tensor_bytes(x, weight) + rows * n * x.element_size(),
        flops=2 * rows * n * k,
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    if quick or device != "cpu":  # for a GPU there is no kernel of ours: torch's is good there
        yield _case(4, 960, 576)
        return
    for n, k in (*SMOLLM2, *LLAMA):
        for rows in (1, 4, 8, 16):
            yield _case(rows, n, k)


# Sums of up to 8,192 products in float32, then one rounding. F.linear adds in another order.
TOLERANCE = {torch.float32: 3e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}

SUITE = Suite("linear", _cases, tolerance=TOLERANCE)

if __name__ == "__main__":
    main(SUITE)
