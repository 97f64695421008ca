"""Rotary position embedding of queries and keys where they lie."""

from torch import Tensor

from gossamer.ops.registry import Op
from gossamer.ops.rope import example, turned
from gossamer.ops.rope_checks import check_positions, check_rope


def rope_inplace(
    x: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    interleaved: bool = False,
    backend: str | None = None,
) -> None:
    """Turn pairs of channels (a, b) of x to (a cos - b sin, b cos + a sin), in float32; see `rope`.

    x: [tokens, heads, head_dim], float32, float16 or bfloat16, written in place: any strides whose
    elements lie apart, as queries and keys inside a fused projection's output. positions: int64
    [tokens], the line of cos and sin that turns a token. cos, sin: float32, contiguous
    [max_positions, rotary_dim / 2]; channels from rotary_dim on stay as they are. Pairs are
    (i, i + rotary_dim / 2), or (2i, 2i + 1) if interleaved.
    Returns nothing. Inference only: no gradient.
    Raises TypeError (dtype) or ValueError (shape, strides, device, position out of range), before
    anything is written. Positions on a GPU are not looked at, as that would wait for them: rows of
    one out of range become NaN.

        rope_inplace(qkv[:, : query_heads + kv_heads], positions, cos, sin)
    """
    _op(x, positions, cos, sin, interleaved, backend=backend)


def _reference(
    x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> None:
    x.copy_(turned(x, positions, cos, sin, interleaved))


def _check(
    x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> None:
    check_rope("rope_inplace", x, positions, cos, sin, interleaved)
    # Each dimension steps over all that the smaller steps reach.
    span, apart = 1, True
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1:
            apart = apart and stride >= span
            span += (size - 1) * stride
    if x.numel() and not apart:
        raise ValueError(
            f"rope_inplace: elements of x of shape {list(x.shape)} with strides "
            f"{list(x.stride())} share memory; must lie apart"
        )


def _check_values(x: Tensor, positions: Tensor, cos: Tensor, *_: object) -> None:
    check_positions("rope_inplace", positions, cos)


_op = Op(
    "rope_inplace",
    reference=_reference,
    check=_check,
    check_values=_check_values,
    fake=lambda *_: None,
    mutates=("x",),
    example=example,
    triton="gossamer.kernels.rope_inplace:rope_inplace",
)
