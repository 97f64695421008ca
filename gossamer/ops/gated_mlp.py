"""The gated MLP of a decoder block: gate and up, activation and multiplication, down."""

import torch
from torch import Tensor

from gossamer.kernels.arguments import GatedMlpArguments, named
from gossamer.ops.activations import activate, check_activation
from gossamer.ops.checks import check_like
from gossamer.ops.linear_checks import check_bias, check_input, check_weight, check_weight_shape
from gossamer.ops.registry import Op

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


def gated_mlp(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    activation: str = "silu",
    *,
    backend: str | None = None,
) -> Tensor:
    """(activation(x @ gate.T) * (x @ up.T)) @ down.T for x [..., k].

    gate_up: [2m, k], the rows of gate, then those of up. down: [n, m]. gate_up_bias: [2m] and
    down_bias: [n] are added to the GEMMs' results. activation: "silu", "gelu" or "gelu_tanh".
    Weights: rows of elements side by side; others: any strides. One dtype (float32, float16 or
    bfloat16) and device. Sums are in float32; what goes into down is rounded to the dtype, and
    where torch's GEMM computes them (more than 16 rows on a CPU, Triton's from 65 rows on) so are
    gate and up. The CUDA kernels are for 16 bits on sm_90, up to 64 rows or 192 and more, k and m
    multiples of 8, rows of weights in multiples of 16 bytes; other calls go on to Triton's.
    Returns a contiguous tensor [..., n]. Inference only: no gradient.
    Raises TypeError (dtype) or ValueError (shape, strides, device, activation).
    """
    args = (x, gate_up, down, gate_up_bias, down_bias, activation)
    result: Tensor = _op(*args, backend=backend)
    return result


@named(GatedMlpArguments)
def _reference(a: GatedMlpArguments) -> Tensor:
    wide = torch.promote_types(a.x.dtype, torch.float32)
    both = a.x.to(wide) @ a.gate_up.to(wide).T
    if a.gate_up_bias is not None:
        both = both + a.gate_up_bias.to(wide)
    gate, up = both.chunk(2, dim=-1)
    hidden = (activate(gate, a.activation) * up).to(a.x.dtype).to(wide)
    result = hidden @ a.down.to(wide).T
    if a.down_bias is not None:
        result = result + a.down_bias.to(wide)
    return result.to(a.x.dtype).contiguous()


@named(GatedMlpArguments)
def _check(a: GatedMlpArguments) -> None:
    op = "gated_mlp"
    check_input(op, a.x)
    check_weight(op, "gate_up", a.gate_up, a.x)
    rows = a.gate_up.shape[0]
    if rows % 2 != 0 or rows == 0:
        raise ValueError(f"{op}: gate_up has {rows} rows; must be an even number, at least 2")
    check_like(op, "down", a.down, "x", a.x)
    check_weight_shape(op, "down", a.down, rows // 2, "half the rows of gate_up")
    check_bias(op, "gate_up_bias", a.gate_up_bias, a.x, rows, "gate_up")
    check_bias(op, "down_bias", a.down_bias, a.x, a.down.shape[0], "down")
    check_activation(op, a.activation, ACTIVATIONS)


@named(GatedMlpArguments)
def _fake(a: GatedMlpArguments) -> Tensor:
    return a.x.new_empty((*a.x.shape[:-1], a.down.shape[0]))


_op = Op(
    "gated_mlp",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=lambda make: (
        *(make(3, 40), make(48, 40) / 6, make(32, 24) / 5, make(48), make(32), "silu"),
    ),
    # Of results of the size of 1; what lies between GEMMs is rounded.
    tolerance={torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2},
    triton="gossamer.kernels.gated_mlp:gated_mlp",
)
