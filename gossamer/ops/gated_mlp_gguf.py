"""The gated MLP of a decoder block with weights in the blocks of GGUF files."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.ops.checks import check_has_last_dim, check_tensor
from gossamer.ops.linear_checks import check_bias
from gossamer.ops.linear_gguf import check_matrix, count_rows, example_rows, expanded
from gossamer.ops.registry import Op


def gated_mlp_gguf(
    x: Tensor,
    gate_up: Sequence[Tensor],
    gate_up_types: Sequence[str],
    down: Sequence[Tensor],
    down_types: Sequence[str],
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Tensor:
    """(silu(x @ gate.T) * (x @ up.T)) @ down.T for x [..., k].

    gate_up: uint8, tensors of rows one below the other as in `linear_gguf`, of 2m rows of k
    weights, those of gate first; down: of n rows of m weights. gate_up_types, down_types: one for
    each tensor. gate_up_bias: [2m] and down_bias: [n], of x's dtype, are added to the GEMMs'
    results. GEMMs are those of `linear_gguf`; what lies between them is rounded to x's dtype.
    Returns a contiguous tensor [..., n]. Inference only. Raises TypeError (dtype) or ValueError
    (shape, type, device).
    """
    types = (",".join(gate_up_types), ",".join(down_types))
    args = (x, list(gate_up), types[0], list(down), types[1], gate_up_bias, down_bias)
    result: Tensor = _op(*args, backend=backend)
    return result


def _reference(
    x: Tensor,
    gate_up: Sequence[Tensor],
    gate_up_types: str,
    down: Sequence[Tensor],
    down_types: str,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    both = x.to(wide) @ expanded(gate_up, gate_up_types).to(wide).T
    if gate_up_bias is not None:
        both = both + gate_up_bias.to(wide)
    gate, up = both.to(x.dtype).to(wide).chunk(2, dim=-1)
    hidden = (F.silu(gate) * up).to(x.dtype).to(wide)
    result = hidden @ expanded(down, down_types).to(wide).T
    if down_bias is not None:
        result = result + down_bias.to(wide)
    return result.to(x.dtype).contiguous()


def _check(
    x: Tensor,
    gate_up: Sequence[Tensor],
    gate_up_types: str,
    down: Sequence[Tensor],
    down_types: str,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> None:
    op = "gated_mlp_gguf"
    check_tensor(op, "x", x)
    check_has_last_dim(op, "x", x)
    check_matrix(op, "gate_up", gate_up, gate_up_types, x, x.shape[-1], "in x")
    rows = count_rows(gate_up)
    if rows % 2 != 0 or rows == 0:
        raise ValueError(f"{op}: gate_up has {rows} rows; must be an even number, at least 2")
    check_matrix(op, "down", down, down_types, x, rows // 2, "half the rows of gate_up")
    check_bias(op, "gate_up_bias", gate_up_bias, x, rows, "gate_up")
    check_bias(op, "down_bias", down_bias, x, count_rows(down), "down")


def _fake(
    x: Tensor, gate_up: Sequence[Tensor], types: str, down: Sequence[Tensor], *_: object
) -> Tensor:
    return x.new_empty((*x.shape[:-1], count_rows(down)))


def _example(make: object) -> tuple[object, ...]:
    x = make(3, 64) / 8  # type: ignore[operator]
    gate_up = [example_rows(64, 64, "q4_1", x.device), example_rows(64, 64, "q8_0", x.device)]
    return x, gate_up, "q4_1,q8_0", [example_rows(24, 64, "q4_1", x.device)], "q4_1", None, None


_op = Op(
    "gated_mlp_gguf",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=_example,
    native_backends=("cpu",),
    # What lies between GEMMs is rounded.
    tolerance={torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2},
)
