"""What a test of an op needs to know about it, and the grid of inputs that all ops share.

`tests/ops/test_<op>.py` defines `SPEC`, where the generic tests find it. The ops on KV blocks are
of another kind: they define `BAD_CALLS` (and `BAD_VALUES`) and bring tests of their own.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from gossamer.ops import OPS
from gossamer.ops.backends import TRITON_INTERPRETED
from gossamer.ops.registry import flat

# Leading dimensions and width: single elements, empty, odd, wider than any vector or block.
SHAPES = [
    (1,),
    (7,),
    (0, 8),
    (5, 1),
    (3, 33),
    (2, 3, 128),
    (2, 1, 2, 2, 40),
    (2, 2049),
    (1, 10_000),
]


@dataclass(frozen=True)
class OpSpec:
    """How to test one op.

    inputs: argument tuples for one shape; tensors come from `make(*shape)`.
    magnitude: per result, the size of the terms that were added up to make it (float64); float32
    arithmetic may lose a few units in the last place of that.
    roundings: per result, how often a value is rounded to the dtype on the way.
    bad_calls: (arguments, exception, message) that every backend must refuse in the same words.
    oracle: what the results should be, in float64, given the results (where one follows from
    another) and the arguments in float64; None for the reference of the latter.
    """

    op: str
    inputs: Callable[[tuple[int, ...], Callable[..., Tensor]], Iterator[tuple[Any, ...]]]
    magnitude: Callable[..., tuple[Tensor, ...]]
    roundings: tuple[int, ...]
    bad_calls: list[tuple[tuple[Any, ...], type[Exception], str]]
    widths: tuple[int, int] = (0, 1 << 62)
    oracle: Callable[..., tuple[Tensor, ...]] | None = None

    def shapes(self) -> list[tuple[int, ...]]:
        return [s for s in SHAPES if self.widths[0] <= s[-1] <= self.widths[1]]

    def check(self, results: Any, args: tuple[Any, ...], rounding_factor: int = 1) -> None:
        """Compare what an op returned with the oracle, element by element."""
        got = flat(results)
        wide = [a.double() if isinstance(a, Tensor) else a for a in args]
        if self.oracle is None:
            oracles = flat(OPS[self.op].reference(*wide))
        else:
            oracles = self.oracle(got, *wide)
        for g, want, magnitude, roundings in zip(
            got, oracles, self.magnitude(*wide), self.roundings, strict=True
        ):
            assert g.shape == want.shape
            allowed = tolerance(want, magnitude, g.dtype, roundings * rounding_factor)
            wrong = ~((g.double() - want).abs() <= allowed)  # NaN is wrong too
            assert not wrong.any(), _describe(wrong, g, want, allowed)


def _describe(wrong: Tensor, got: Tensor, want: Tensor, allowed: Tensor) -> str:
    first = tuple(wrong.nonzero()[0].tolist())
    return (
        f"{int(wrong.sum())} of {wrong.numel()} wrong in {list(got.shape)}; first at {first}: "
        f"{got[first].item()} instead of {want[first].item()} +- {allowed[first].item():.3g}"
    )


def _test_module(op: str) -> Any:
    return importlib.import_module(f"tests.ops.test_{op}")


def spec_of(op: str) -> OpSpec:
    spec: OpSpec = _test_module(op).SPEC
    return spec


def specified() -> list[str]:
    """The ops with an OpSpec: those whose test module defines `SPEC`."""
    return [name for name in OPS if hasattr(_test_module(name), "SPEC")]


def bad_calls_of(op: str) -> list[tuple[tuple[Any, ...], type[Exception], str]]:
    return spec_of(op).bad_calls if op in specified() else _test_module(op).BAD_CALLS


def bad_values_of(op: str) -> list[tuple[tuple[Any, ...], type[Exception], str]]:
    """Bad numbers inside of tensors, which are looked at on the CPU alone."""
    return getattr(_test_module(op), "BAD_VALUES", [])


def example(op: str, device: str = "cpu", shape: tuple[int, ...] = (3, 8)) -> tuple[Any, ...]:
    """Valid arguments; of float16 where a GPU kernel takes no others."""
    dtype = torch.float16 if device == "cuda" and OPS[op].limits else torch.float32
    make = lambda *size: torch.randn(size, device=device, dtype=dtype)  # noqa: E731
    return next(spec_of(op).inputs(shape, make)) if op in specified() else OPS[op].example(make)


def runs(*names: str) -> list[Any]:
    """pytest parameters (op, backend, device) for every backend of these ops (default: all ops)."""
    devices = {"reference": ("cpu", "cuda"), "cpu": ("cpu",), "cuda": ("cuda",)}
    devices["triton"] = ("cpu",) if TRITON_INTERPRETED else ("cuda",)
    return [
        pytest.param(
            *(name, backend, device),
            id=f"{name}-{backend}-{device}",
            marks=[pytest.mark.gpu] if device == "cuda" else [],
        )
        for name in names or specified()
        for backend in OPS[name].backends
        for device in devices[backend]
    ]


# ---- memory layouts: the same values, lying differently, in a sea of NaN ------------


def _surrounded(values: Tensor, before: int, stride: tuple[int, ...]) -> Tensor:
    """A copy of `values` with these strides, `before` elements into a sea of NaN."""
    span = 1 + sum((n - 1) * s for n, s in zip(values.shape, stride, strict=True))
    memory = torch.full(
        (before + span + 64,), float("nan"), dtype=values.dtype, device=values.device
    )
    view = memory.as_strided(values.shape, stride, before)
    if values.numel():
        view.copy_(values)
    return view


def _dense_stride(shape: tuple[int, ...], inner: int = 1, row_gap: int = 0) -> tuple[int, ...]:
    strides, step = [], inner
    for i, size in enumerate(reversed(shape)):
        strides.append(step)
        step = step * max(size, 1) + (row_gap if i == 0 else 0)
    return tuple(reversed(strides))


def contiguous(values: Tensor) -> Tensor:
    return _surrounded(values, 64, _dense_stride(values.shape))


def misaligned(values: Tensor) -> Tensor:
    return _surrounded(values, 1, _dense_stride(values.shape))


def sliced_rows(values: Tensor) -> Tensor:
    return _surrounded(values, 8, _dense_stride(values.shape, row_gap=24))


def every_second(values: Tensor) -> Tensor:
    return _surrounded(values, 4, _dense_stride(values.shape, inner=2))


def transposed(values: Tensor) -> Tensor:
    return _surrounded(values, 4, tuple(reversed(_dense_stride(tuple(reversed(values.shape))))))


def expanded(values: Tensor) -> Tensor:
    """Stride 0 in all dimensions but the last: many elements, few of them in memory."""
    if values.numel() == 0 or values.dim() < 2:
        return contiguous(values)
    first = contiguous(values[(0,) * (values.dim() - 1)])
    return first.expand(values.shape)


LAYOUTS = {
    f.__name__: f for f in (contiguous, misaligned, sliced_rows, every_second, transposed, expanded)
}


# ---- tolerances -------------------------------------------------------------------


def tolerance(want: Tensor, magnitude: Tensor, dtype: torch.dtype, roundings: int) -> Tensor:
    """How far a result may be from the float64 oracle, element by element.

    Every rounding to the dtype costs half a unit in the last place (2% of slack for approximated
    functions), float32 arithmetic up to 8 units of its own in the terms that were summed.
    """
    unit = torch.finfo(dtype).eps
    step = torch.finfo(dtype).smallest_normal * unit  # spacing of subnormal numbers
    return 0.51 * roundings * (unit * want.abs() + step) + 8 * 2**-23 * magnitude


def poison(shapes: list[torch.Size], dtype: torch.dtype, device: str) -> set[int]:
    """Leave NaN in freed memory of these sizes, where results will likely go; its addresses."""
    blocks = [torch.full(shape, float("nan"), dtype=dtype, device=device) for shape in shapes]
    return {block.data_ptr() for block in blocks}


def rounding_factor(backend: str, dtype: torch.dtype) -> int:
    """Triton's interpreter truncates to bfloat16: a whole unit where hardware loses half of one."""
    truncates = backend == "triton" and TRITON_INTERPRETED and dtype == torch.bfloat16
    return 2 if truncates else 1
