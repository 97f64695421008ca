"""Random numbers without a generator: each is a pure function of (seed, position, token).

So what a request samples depends neither on the batch it is in, nor on the scheduler, nor on
preemption: the noise of its 7th token is the same bits whenever and wherever it is computed.
"""

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # 2**64 / golden ratio; torch has no unsigned arithmetic
# The finaliser of splitmix64 (Steele, Lea, Flood 2014; constants: Stafford's variant 13).
MULTIPLIERS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
BELOW_ONE = 1 - 2**-24  # the largest float32 below 1


def uniform(seeds: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """Noise in (0, 1), float32 [rows, vocab], of seeds and positions, both int64 [rows].

    Integer arithmetic and one correctly rounded conversion: the same bits on every device. Values
    near 0 keep their 24 significant bits, down to 2**-63, so that rare tokens have their chance.
    """
    if seeds.dtype is not torch.int64 or positions.dtype is not torch.int64:
        raise TypeError(f"seeds, positions are {seeds.dtype}, {positions.dtype}; must be int64")
    if seeds.dim() != 1 or seeds.shape != positions.shape:
        raise ValueError(
            f"seeds, positions have shapes {list(seeds.shape)}, {list(positions.shape)}; "
            "must both be [rows]"
        )
    tokens = torch.arange(1, vocab + 1, device=seeds.device)
    # Neighbouring seeds, positions and tokens are all far apart before they meet. Seed and position
    # meet in two rounds, so that (seed, position + 1) is not another seed's (seed', position).
    keys = _mix(_mix(seeds + GOLDEN) ^ _mix((positions + 1) * GOLDEN))
    bits = _mix(keys[:, None] ^ _mix(tokens * GOLDEN))
    # 63 bits, since int64 is signed; the lowest is set, since 0 has no logarithm.
    odd = bits.bitwise_and_((1 << 63) - 1).bitwise_or_(1)
    return odd.to(torch.float32).mul_(2.0**-63).clamp_(max=BELOW_ONE)


def gumbel(seeds: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """Gumbel noise, float32 [rows, vocab]: argmax(log weights + this) samples by the weights."""
    # Winners have small exponentials -log(1 - u), which are as precise as u near 0.
    return uniform(seeds, positions, vocab).neg_().log1p_().neg_().log_().neg_()


def _mix(x: Tensor) -> Tensor:
    """In place: a bijection of 64 bits; each input bit flips each output bit half of the time."""
    shifted = torch.empty_like(x)  # the one temporary: fresh memory costs more than the arithmetic
    for shift, multiplier in ((30, MULTIPLIERS[0]), (27, MULTIPLIERS[1]), (31, None)):
        torch.bitwise_right_shift(x, shift, out=shifted)
        # >> copies the sign bit; the mask makes zeros of the copies.
        x.bitwise_xor_(shifted.bitwise_and_((1 << (64 - shift)) - 1))
        if multiplier is not None:
            x.mul_(multiplier)  # int64 wraps around, as wanted
    return x
