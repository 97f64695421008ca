"""What the Triton kernels of masked attention share: scores, their softmax, and strides."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.decode_step import tanh

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
UNIT = tl.constexpr(8)  # elements, of which the strides of q, k and v are multiples


@triton.jit
def bend(scores, bias_at, inside, scale, softcap, CAPPED: tl.constexpr, BIASED: tl.constexpr):
    """q k to scores, times log2 e: scaled, capped, and with the bias where `inside`."""
    scores *= scale
    if CAPPED:
        scores = softcap * tanh(scores / softcap)
    if BIASED:
        scores += tl.load(bias_at, mask=inside, other=0.0).to(tl.float32)
    return scores * LOG2E


@triton.jit
def weigh(scores, largest, total, factor):
    """Weights of scores * factor; the largest so far, the sum, and by how much sums shrink.

    A row whose scores are all -inf has weights of 0.
    """
    before = largest
    largest = tl.maximum(before, tl.max(scores, axis=1) * factor)
    origin = tl.where(largest == -float("inf"), 0.0, largest)
    weights = tl.exp2(scores * factor - origin[:, None])
    shrink = tl.exp2(before - origin)
    return weights, largest, total * shrink + tl.sum(weights, axis=1), shrink


@triton.jit
def finish(sums, largest, total):
    """out and lse of some rows; zeros and -inf where nothing was seen."""
    seen = total != 0.0
    out = sums / tl.where(seen, total, 1.0)[:, None]
    return out, tl.where(seen, (largest + tl.log2(total)) * LN2, -float("inf"))


def aligned(x: Tensor) -> Tensor:
    """Itself, or a copy where rows do not begin at multiples of 16 bytes and UNIT elements."""
    fits = x.data_ptr() % 16 == 0 and all(s % UNIT.value == 0 for s in x.stride()[:3])
    return x if fits else x.clone(memory_format=torch.contiguous_format)


def bias_strides(bias: Tensor | None, q: Tensor, k: Tensor) -> tuple[int, ...]:
    """Of the bias, expanded to [B, Hq, Nq, Nk]."""
    if bias is None:
        return (0, 0, 0, 0)
    return bias.expand(*q.shape[:3], k.shape[2]).stride()
