"""K and V on their way from a SparseCache to its attention: nothing else may touch them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext

WAY_OUT = (
    "K and V of a SparseCache can only go to attn_implementation='gossamer', as they are: call "
    "model.set_attn_implementation('gossamer') or generate inside use_gossamer(model, ...); a "
    "model that changes them after Cache.update is not supported"
)
# What may be asked of such a tensor, as by models that look at shapes.
QUESTIONS = {"shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "layout"}
QUESTIONS |= {"size", "dim", "__repr__", "numel", "stride", "is_contiguous", "__len__"}


class Handed(Tensor):
    """New K or V of one layer. plain: the tensor itself. cache, layer: where it belongs.

    Every operation on it is a ValueError: another attention would see the new tokens alone.
    """

    plain: Tensor
    cache: Any
    layer: int

    @classmethod
    def of(cls, x: Tensor, cache: Any, layer: int) -> "Handed":
        handed = x.as_subclass(cls)
        handed.plain, handed.cache, handed.layer = x, cache, layer
        return handed

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(getattr(func, "__self__", None), "__name__", "")  # of a property
        asked = name in QUESTIONS or getattr(func, "__name__", "") in QUESTIONS
        if not asked and TracingContext.try_get() is None:  # torch.compile looks at all tensors
            raise ValueError(WAY_OUT)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))
