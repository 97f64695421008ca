"""linear_int8 against a GEMM of floats, and against torch._int_mm with its scales."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.suites.gemm_cases import TOLERANCE_8BIT, case_8bit, heat, oracle_8bit, supported
from gossamer.bench.suite import Case, Suite, main
from gossamer.ops import quantize_int8
from gossamer.ops.checks import FLOAT_DTYPES


def _int_mm(
    x: Tensor, xs: Tensor, weight: Tensor, ws: Tensor, _: None, dtype: torch.dtype
) -> Callable[[], Tensor]:
    columns = ws.T.contiguous()

    def multiply() -> Tensor:
        return (torch._int_mm(x, weight.T) * xs * columns).to(dtype)

    return supported(multiply)


def _cases(device: str, quick: bool) -> Iterator[Case]:
    shapes = [(4, 960, 576)]
    dtypes: tuple[torch.dtype, ...] = FLOAT_DTYPES
    if not quick and device == "cpu":
        dtypes = (torch.float32, torch.bfloat16)
        # 17 MB of codes, which may stay in a cache from call to call (floats do not), and 134 MB.
        sizes = ((8192, 2048), (2048, 8192), (16_384, 8192))
        shapes = [(m, n, k) for n, k in sizes for m in (1, 4, 8, 16, 64)]
    if not quick and device == "cuda":
        heat()
        dtypes = (torch.bfloat16,)
        shapes = [(m, 8192, 8192) for m in (16, 64, 256, 2048, 8192)]
    for shape in shapes:
        yield case_8bit(shape, quantize_int8, quantize_int8, "", {"torch._int_mm": _int_mm}, dtypes)


SUITE = Suite("linear_int8", _cases, oracle=oracle_8bit, tolerance=TOLERANCE_8BIT)

if __name__ == "__main__":
    main(SUITE)
