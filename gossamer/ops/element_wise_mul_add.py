"""a * b + c in one pass over memory, with broadcasting."""

import torch
from torch import Tensor

from gossamer.ops.checks import check_like, check_tensor
from gossamer.ops.registry import Op


def element_wise_mul_add(a: Tensor, b: Tensor, c: Tensor, *, backend: str | None = None) -> Tensor:
    """a * b + c, computed in float32 and rounded to the dtype once.

    a, b, c: float32, float16 or bfloat16, one dtype and device, any strides; shapes broadcast
    together. Returns a contiguous tensor of the common shape. Inference only: no gradient.
    Raises TypeError (dtype) or ValueError (device, shapes that do not broadcast).
    """
    result: Tensor = _op(a, b, c, backend=backend)
    return result


def _reference(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    wide = torch.promote_types(a.dtype, torch.float32)
    return (a.to(wide) * b.to(wide) + c.to(wide)).to(a.dtype).contiguous()


def _check(a: Tensor, b: Tensor, c: Tensor) -> None:
    op = "element_wise_mul_add"
    check_tensor(op, "a", a)
    check_like(op, "b", b, "a", a)
    check_like(op, "c", c, "a", a)
    try:
        torch.broadcast_shapes(a.shape, b.shape, c.shape)
    except RuntimeError:
        problem = f"a has shape {list(a.shape)}, b {list(b.shape)}, c {list(c.shape)}"
        raise ValueError(f"{op}: {problem}; must broadcast together") from None


def _fake(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return a.new_empty(torch.broadcast_shapes(a.shape, b.shape, c.shape))


_op = Op(
    "element_wise_mul_add",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=lambda make: (make(3, 40), make(40), make(3, 1)),
    triton="gossamer.kernels.element_wise_mul_add:element_wise_mul_add",
)
