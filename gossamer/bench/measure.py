"""Timing with proof: the results of the timed calls are compared with an oracle."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gossamer.bench.timing import Timing, device_of, l2_bytes, time_calls
from gossamer.ops.registry import flat

# Relative error ||out - oracle|| / ||oracle|| that honest arithmetic in a dtype stays under.
# PyTorch's own unfused ops, which round in between, reach half of it in 16 bits.
MAX_RELATIVE_ERROR = {
    torch.float64: 1e-12,
    torch.float32: 5e-7,
    torch.float16: 7e-4,
    torch.bfloat16: 5e-3,
}
# Largest difference of one element, in units of the last place of the largest element; more where
# a suite allows a larger relative error.
MAX_UNITS = 8
MAX_ARGUMENT_SETS = 16


class WrongResultError(RuntimeError):
    """A timed call returned something else than the oracle."""


@dataclass(frozen=True)
class Measurement:
    """A timing, and how far the results were from the oracle."""

    timing: Timing
    max_error: float  # largest absolute difference from the oracle
    relative_error: float  # ||out - oracle|| / ||oracle||, the worst over all results


def measure(
    fn: Callable[..., Any],
    make_args: Callable[[], tuple[Any, ...]],
    oracle: Callable[..., Any],
    *,
    warmup: int = 20,
    iters: int = 100,
    preserve: Callable[[tuple[Any, ...]], tuple[Any, ...]] = lambda args: args,
    prepare: Callable[..., Callable[[], Any]] = partial,
    tolerance: Mapping[torch.dtype, float] = MAX_RELATIVE_ERROR,
) -> Measurement:
    """Time `fn(*make_args())` over rotating argument sets and check what the timed calls returned.

    make_args: fresh random arguments each time it is called. oracle: the same function of the same
    arguments in higher precision; its results may have any dtype. preserve: the arguments as the
    oracle needs them, taken before the first call; copies of those that `fn` writes to. prepare:
    makes the call that is timed from (fn, *args), before the first call. tolerance: the relative
    error that is allowed, by dtype of the result.
    Raises WrongResultError when a result is off by more than its dtype allows, or not finite;
    integers must be equal.
    """
    argument_sets = _rotation(make_args)
    preserved = [preserve(args) for args in argument_sets]
    calls = [prepare(fn, *args) for args in argument_sets]
    results: list[Any] = [None] * len(argument_sets)

    def call(i: int) -> None:
        slot = i % len(calls)
        results[slot] = calls[slot]()

    timing = time_calls(call, device=device_of(argument_sets[0]), warmup=warmup, iters=iters)
    pairs = [
        pair
        for args, result in zip(preserved, results, strict=True)
        if result is not None  # fewer calls than argument sets
        for pair in zip(flat(result), flat(oracle(*args)), strict=True)
    ]
    errors = [_errors(got, want, tolerance) for got, want in pairs]
    return Measurement(timing, max(e[0] for e in errors), max(e[1] for e in errors))


def _rotation(make_args: Callable[[], tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Up to 16 argument sets on a GPU, so that calls do not meet the same addresses again."""
    sets = [make_args()]
    device = device_of(sets[0])
    if device.type == "cuda":
        wanted = 1 + 2 * l2_bytes(device) // max(argument_bytes(sets[0]), 1)
        sets += [make_args() for _ in range(min(wanted, MAX_ARGUMENT_SETS) - 1)]
    return sets


def argument_bytes(args: Sequence[Any]) -> int:
    """Bytes of all tensors among these arguments."""
    return sum(a.numel() * a.element_size() for a in args if isinstance(a, Tensor))


def check_results(
    got: Any, want: Any, tolerance: Mapping[torch.dtype, float] = MAX_RELATIVE_ERROR
) -> float:
    """The largest absolute difference of these results; WrongResultError where it is too large."""
    pairs = zip(flat(got), flat(want), strict=True)
    return max((_errors(g, w, tolerance)[0] for g, w in pairs), default=0.0)


def _errors(
    got: Tensor, want: Tensor, tolerance: Mapping[torch.dtype, float]
) -> tuple[float, float]:
    """Largest absolute and relative error; WrongResultError when one is too large."""
    if got.shape != want.shape:
        raise WrongResultError(f"result has shape {list(got.shape)}; must be {list(want.shape)}")
    if got.numel() == 0:
        return 0.0, 0.0
    if not got.dtype.is_floating_point:
        if not torch.equal(got, want):
            raise WrongResultError(f"{int((got != want).sum())} of {got.numel()} bytes are wrong")
        return 0.0, 0.0
    difference = got.double() - want.double()
    largest = difference.abs().max().item()
    relative = (difference.norm() / want.double().norm().clamp_min(1e-300)).item()
    limit = tolerance[got.dtype]
    if not relative <= limit:  # also true for NaN
        raise WrongResultError(f"relative error is {relative:.3g}; must be at most {limit:g}")
    units = MAX_UNITS * limit / MAX_RELATIVE_ERROR[got.dtype]
    bound = units * torch.finfo(got.dtype).eps * want.abs().max().item()
    if not largest <= bound:
        raise WrongResultError(f"an element is off by {largest:.3g}; must be at most {bound:.3g}")
    return largest, relative
