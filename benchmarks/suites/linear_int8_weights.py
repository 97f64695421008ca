"""linear_int8_weights against torch's GEMM of the same weights as floats."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.suites.gemm_cases import TOLERANCE_16BIT
from benchmarks.suites.linear import LLAMA, SMOLLM2
from gossamer.bench.suite import Case, Suite, main, tensor_bytes
from gossamer.ops.checks import FLOAT_DTYPES

Args = tuple[Tensor, Tensor, Tensor, None]


def _eager(x: Tensor, codes: Tensor, scale: Tensor, _: None) -> Callable[[], Tensor]:
    weight = (codes * scale).to(x.dtype)
    return lambda: F.linear(x, weight)


def _oracle(x: Tensor, codes: Tensor, scale: Tensor, _: None) -> Tensor:
    return x.double() @ (codes.double() * scale.double()).T


def _case(rows: int, n: int, k: int, dtypes: tuple[torch.dtype, ...]) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> Args:
        x = torch.randn(rows, k, dtype=dtype, device=device)
        codes = torch.randint(-127, 128, (n, k), dtype=torch.int8, device=device)
        return x, codes, torch.rand(n, 1, device=device) / (64 * k**0.5), None

    return Case(
        shape=(rows, n, k),
        make_args=make_args,
        peers={},
        adapted={"eager": _eager},
        bytes=lambda x, *weight: tensor_bytes(x, *weight[:2]) + rows * n * x.element_size(),
        flops=2 * rows * n * k,
        dtypes=dtypes,
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    if quick:
        yield _case(4, 960, 576, FLOAT_DTYPES)
        return
    for n, k in (*SMOLLM2[:3], *LLAMA) if device == "cpu" else ():  # GPUs have linear_int8
        for rows in (1, 4, 16, 512):
            yield _case(rows, n, k, (torch.float32,))


SUITE = Suite("linear_int8_weights", _cases, oracle=_oracle, tolerance=TOLERANCE_16BIT)

if __name__ == "__main__":
    main(SUITE)
