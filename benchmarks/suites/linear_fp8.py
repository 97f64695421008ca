"""linear_fp8 against a GEMM in bfloat16, and against torch._scaled_mm."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.suites.gemm_cases import TOLERANCE_8BIT, case_8bit, heat, oracle_8bit, supported
from gossamer.bench.suite import Case, Suite, main
from gossamer.ops import quantize_fp8
from gossamer.ops.checks import FLOAT_DTYPES

# Granularity of x and of weight, by variant.
GRANULARITIES = {"row": ("row", "row"), "tensor": ("tensor", "tensor"), "block": ("group", "block")}


def _scaled_mm(x: Tensor, xs: Tensor, weight: Tensor, ws: Tensor, *_: Any) -> Callable[[], Tensor]:
    if xs.numel() == 1:
        xs, ws = xs[0], ws[0]
    else:
        xs, ws = xs.T.contiguous().T, ws.T
    multiply = partial(torch._scaled_mm, x, weight.T, xs, ws, out_dtype=torch.bfloat16)
    return supported(multiply)


def _cases(device: str, quick: bool) -> Iterator[Case]:
    shapes = [(4, 960, 576)]
    dtypes: tuple[torch.dtype, ...] = FLOAT_DTYPES
    if not quick and device == "cuda":
        heat()
        dtypes = (torch.bfloat16,)
        shapes = [(m, 8192, 8192) for m in (16, 256, 2048, 8192)]
    for shape in shapes:
        for variant, granularities in GRANULARITIES.items():
            of_x, of_weight = (partial(quantize_fp8, granularity=g) for g in granularities)
            yield case_8bit(
                shape, of_x, of_weight, variant, {"torch._scaled_mm": _scaled_mm}, dtypes
            )


SUITE = Suite("linear_fp8", _cases, oracle=oracle_8bit, tolerance=TOLERANCE_8BIT)

if __name__ == "__main__":
    main(SUITE)
