"""element_wise_mul_add against eager PyTorch: as an expression, and as torch.addcmul."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.peers.compiled import compiled
from benchmarks.suites.shapes import pilot_dtypes, pilot_shapes
from gossamer.bench.suite import Case, Suite, main, tensor_bytes

# How b and c broadcast against [batch, tokens, hidden]: not, along tokens, along the hidden size.
OTHERS: dict[str, Callable[[tuple[int, ...]], tuple[int, ...]]] = {
    "b,c=full": lambda shape: shape,
    "b,c=[hidden]": lambda shape: shape[-1:],
    "b,c=[...,1]": lambda shape: (*shape[:-1], 1),
}


def _eager(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return a * b + c


def _case(shape: tuple[int, ...], variant: str, device: str) -> Case:
    other = OTHERS[variant](shape)

    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
        a = torch.randn(shape, dtype=dtype, device=device)
        b, c = (torch.randn(other, dtype=dtype, device=device) for _ in range(2))
        return a, b, c

    return Case(
        shape=shape,
        make_args=make_args,
        peers={
            "eager": _eager,
            "addcmul": lambda a, b, c: torch.addcmul(c, a, b),
        },
        adapted=compiled("element_wise_mul_add", _eager, device),
        bytes=lambda a, b, c: tensor_bytes(a, a, b, c),
        flops=2 * torch.Size(shape).numel(),
        dtypes=pilot_dtypes(device, shape),
        variant=variant,
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    for shape in pilot_shapes(device, quick):
        for variant in OTHERS:
            yield _case(shape, variant, device)


SUITE = Suite("element_wise_mul_add", _cases)

if __name__ == "__main__":
    main(SUITE)
