"""dequantize_gguf against the reference in plain torch."""

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.suites.linear_gguf import random_blocks
from gossamer.bench.suite import Case, Suite, main, tensor_bytes
from gossamer.ops.gguf import dequantized

ROWS, K = 4096, 2048


def _eager(weight: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    return dequantized(weight, kind).to(dtype)


def _case(rows: int, k: int, kind: str) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor, str, torch.dtype]:
        return random_blocks(rows, k, kind, device), kind, dtype

    return Case(
        shape=(rows, k),
        make_args=make_args,
        peers={"eager": _eager},
        bytes=lambda weight, kind, dtype: tensor_bytes(weight) + rows * k * dtype.itemsize,
        flops=0,
        variant=kind,
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    if quick or device != "cpu":
        yield _case(64, 256, "q4_1")
        return
    for kind in ("q4_1", "q5_0", "q8_0", "q4_k", "q6_k"):
        yield _case(ROWS, K, kind)


def _oracle(weight: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    return dequantized(weight, kind).double()


SUITE = Suite("dequantize_gguf", _cases, oracle=_oracle)

if __name__ == "__main__":
    main(SUITE)
