"""linear_int4 against torch's GEMM of the same weights as floats."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.suites.gemm_cases import TOLERANCE_16BIT, heat
from benchmarks.suites.linear import LLAMA, SMOLLM2
from gossamer.bench.suite import Case, Suite, main, tensor_bytes
from gossamer.ops.checks import FLOAT_DTYPES
from gossamer.ops.linear_int4 import dequantized

LLAMA_8B = ((6144, 4096), (4096, 4096), (28_672, 4096), (4096, 14_336))
Args = tuple[Tensor, Tensor, Tensor, Tensor, None]


def _eager(x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor, _: None) -> Callable[[], Tensor]:
    weight = dequantized(codes, scale, zero).to(x.dtype)
    return lambda: F.linear(x, weight)


def _oracle(x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor, _: None) -> Tensor:
    return x.double() @ dequantized(codes, scale, zero).double().T


def _case(rows: int, n: int, k: int, group: int, dtypes: tuple[torch.dtype, ...]) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> Args:
        x = torch.randn(rows, k, dtype=dtype, device=device)
        codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=device)
        scale = (torch.rand(n, k // group, device=device) / k**0.5).half()
        return x, codes, scale, torch.full_like(scale, 7.5), None

    return Case(
        shape=(rows, n, k),
        make_args=make_args,
        peers={},
        adapted={"eager": _eager},
        bytes=lambda x, *weight: tensor_bytes(x, *weight[:3]) + rows * n * x.element_size(),
        flops=2 * rows * n * k,
        variant=f"group {group}",
        dtypes=dtypes,
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    if quick:
        yield _case(4, 960, 576, 32, FLOAT_DTYPES)
        return
    if device == "cuda":
        heat()
    sizes = (*SMOLLM2[:3], *LLAMA) if device == "cpu" else LLAMA_8B
    group, dtype = (32, torch.float32) if device == "cpu" else (128, torch.bfloat16)
    for n, k in sizes:
        for rows in (1, 4, 16, 64, 512):
            if device == "cuda" or rows != 64:
                yield _case(rows, n, k, group, (dtype,))


SUITE = Suite("linear_int4", _cases, oracle=_oracle, tolerance=TOLERANCE_16BIT)

if __name__ == "__main__":
    main(SUITE)
