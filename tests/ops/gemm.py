"""What tests of ops that chain GEMMs share: results are compared with the reference in float64.

What lies between two GEMMs is rounded to the dtype, by some backends more often than by others,
so that errors go with the size of all terms, not with the result: the bound is on the norm of a
row, and one element may be off by some units of the largest one.
"""

import torch
from torch import Tensor

from gossamer.ops import OPS
from gossamer.ops.registry import flat

RELATIVE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def random(*sizes: tuple[int, ...], dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    """Tensors of these shapes; matrices are scaled so that results are of the size of 1."""
    made = [torch.randn(size, device=device) for size in sizes]
    return [(t / t.shape[-1] ** 0.5 if t.dim() == 2 else t).to(dtype) for t in made]


def rounding_of_digits(x: Tensor, weight: Tensor, run: int = 32) -> Tensor:
    """How far results [m, n] may be off where x is rounded to 16 bits of the largest of each run.

    x [m, k], weight [n, k]; 2^-16 of the largest number, and a little for the scale.
    """
    runs = x.double().abs().unflatten(1, (-1, run))
    largest = runs.amax(2, keepdim=True).expand_as(runs).flatten(1)
    return largest @ weight.double().abs().T * (2**-16 * 1.01)


def check(op: str, args: tuple, backend: str | None) -> None:
    """Run an op on a backend and compare its results with the reference in float64."""
    wide = [a.double() if isinstance(a, Tensor) else a for a in args]
    results = flat(OPS[op](*args, backend=backend))
    for got, want in zip(results, flat(OPS[op].reference(*wide)), strict=True):
        assert got.dtype is args[0].dtype
        assert got.shape == want.shape
        assert got.is_contiguous()
        if got.numel() == 0:
            continue
        error = (got.double() - want).abs()
        limit = RELATIVE[got.dtype]
        # Results are of the size of 1, and so are their terms where they cancel.
        size = want.norm() + want.numel() ** 0.5
        assert (error.norm() <= limit * size).item(), f"{error.norm() / size:.2g}"
        assert (error.max() <= 4 * limit * (1 + want.abs().max())).item(), f"{error.max():.2g}"
