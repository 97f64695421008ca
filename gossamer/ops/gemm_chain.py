"""Two GEMMs with an activation between them: the plain MLP."""

import torch
from torch import Tensor

from gossamer.kernels.arguments import GemmChainArguments, named
from gossamer.ops.activations import activate, check_activation
from gossamer.ops.checks import check_like
from gossamer.ops.linear_checks import check_bias, check_input, check_weight, check_weight_shape
from gossamer.ops.registry import Op


def gemm_chain(
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    b1: Tensor | None = None,
    b2: Tensor | None = None,
    activation: str = "gelu",
    *,
    backend: str | None = None,
) -> Tensor:
    """activation(x @ w1.T + b1) @ w2.T + b2 for x [..., k], w1 [m, k], w2 [n, m], b1 [m], b2 [n].

    activation: "gelu", "gelu_tanh", "silu", "swish" (silu), "mish", "relu2" or "relu".
    w1, w2: rows of elements side by side, k and m at least 1; others: any strides. One dtype
    (float32, float16 or bfloat16) and device. Sums, biases and the activation are in float32, what
    is between the GEMMs is rounded to the dtype (on a CPU, for more than 16 rows, once more
    before the activation). The CUDA kernel is for 16 bits on sm_90, up to 32 rows, k and m
    multiples of 8, rows of weights in multiples of 16 bytes; other calls go on to Triton's.
    Returns a contiguous tensor [..., n]. Inference only: no gradient.
    Raises TypeError (dtype) or ValueError (shape, strides, device, activation).
    """
    result: Tensor = _op(x, w1, w2, b1, b2, activation, backend=backend)
    return result


@named(GemmChainArguments)
def _reference(a: GemmChainArguments) -> Tensor:
    wide = torch.promote_types(a.x.dtype, torch.float32)
    hidden = a.x.to(wide) @ a.w1.to(wide).T
    if a.b1 is not None:
        hidden = hidden + a.b1.to(wide)
    result = activate(hidden, a.activation).to(a.x.dtype).to(wide) @ a.w2.to(wide).T
    if a.b2 is not None:
        result = result + a.b2.to(wide)
    return result.to(a.x.dtype).contiguous()


@named(GemmChainArguments)
def _check(a: GemmChainArguments) -> None:
    op = "gemm_chain"
    check_input(op, a.x)
    check_weight(op, "w1", a.w1, a.x)
    if a.w1.shape[0] < 1:
        raise ValueError(f"{op}: w1 has 0 rows; must have at least 1")
    check_like(op, "w2", a.w2, "x", a.x)
    check_weight_shape(op, "w2", a.w2, a.w1.shape[0], "the rows of w1")
    check_bias(op, "b1", a.b1, a.x, a.w1.shape[0], "w1")
    check_bias(op, "b2", a.b2, a.x, a.w2.shape[0], "w2")
    check_activation(op, a.activation)


@named(GemmChainArguments)
def _fake(a: GemmChainArguments) -> Tensor:
    return a.x.new_empty((*a.x.shape[:-1], a.w2.shape[0]))


_op = Op(
    "gemm_chain",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=lambda make: (
        *(make(3, 40), make(48, 40) / 6, make(32, 48) / 7, make(48), make(32), "gelu"),
    ),
    # Of results of the size of 1; what lies between GEMMs is rounded.
    tolerance={torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2},
    triton="gossamer.kernels.gemm_chain:gemm_chain",
)
