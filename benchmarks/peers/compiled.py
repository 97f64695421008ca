"""What users write, through torch.compile: the peer that fuses by itself."""

import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

from gossamer.bench.suite import Prepare
from gossamer.ops import OPS

Eager = Callable[..., Any]


def compiled(op: str, eager: Eager, device: str) -> Mapping[str, Prepare]:
    """`eager`, compiled for each point by itself, as the peer "compile" of a GPU.

    Not on a CPU, where compiling a point takes longer than all else.
    """
    if device != "cuda":
        return {}

    def adapt(*args: Any) -> Callable[[], tuple[Tensor, ...]]:
        program = _program(eager, tuple(_kind(a) for a in args))
        return lambda: OPS[op].results(program(*args), args)

    return {"compile": adapt}


def _kind(arg: Any) -> Hashable:
    """What a program is compiled for."""
    if isinstance(arg, Tensor):
        return tuple(arg.shape), arg.stride(), arg.dtype
    return type(arg), arg


@functools.lru_cache(maxsize=1)
def _program(eager: Eager, kinds: tuple[Hashable, ...]) -> Eager:
    """From scratch: after 8 shapes, Dynamo would give up and run the function uncompiled."""
    torch._dynamo.reset()
    program: Eager = torch.compile(eager, dynamic=False, fullgraph=True)
    return program
