"""An operator of your own, outside the package: meaning, checks, torch.library, torch.compile.

    python examples/new_operator.py

`gossamer new-op NAME` writes all files of one inside a checkout; docs/custom-kernels.md is the
guide, with Triton, C++ and CUDA backends.
"""

import torch
from torch import Tensor

from gossamer.ops.checks import check_tensor
from gossamer.ops.registry import Op


def reference(x: Tensor, limit: float = 1.0) -> Tensor:
    """The meaning in plain torch, computed in float32; its signature becomes the op's schema."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.to(wide).square().clamp_max(limit).to(x.dtype).contiguous()


def check(x: Tensor, limit: float = 1.0) -> None:
    """Bad arguments get the same error from every backend: the value, and what is valid."""
    check_tensor("capped_square", "x", x)
    if not limit > 0:
        raise ValueError(f"capped_square: limit is {limit}; must be > 0")


capped_square = Op(
    "capped_square",
    reference=reference,
    check=check,
    fake=lambda x, limit=1.0: x.new_empty(x.shape),  # the result's shape, for tracing
    example=lambda make: (make(3, 40), 0.5),
    native_backends=(),  # neither C++ nor CUDA yet
)


def main() -> None:
    """Call it directly, through torch.ops and compiled; let torch's own checks look at it."""
    x = torch.randn(5, 33)
    direct = capped_square(x, 0.5)
    compiled = torch.compile(lambda x: capped_square(x, 0.5) + 1, backend="aot_eager")
    torch.testing.assert_close(torch.ops.gossamer.capped_square(x, 0.5), direct)
    torch.testing.assert_close(compiled(x), direct + 1)
    torch.library.opcheck(capped_square.select("cpu", "reference"), (x, 0.5))
    print("backends on this CPU:", ", ".join(capped_square.available("cpu")))
    try:
        capped_square(x, -1.0)
    except ValueError as error:
        print("bad argument:", error)


if __name__ == "__main__":
    main()
