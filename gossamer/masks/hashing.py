"""Random numbers that are a function of their place, so that nobody has to store them."""

import torch
from torch import Tensor

MIX = 0x45D9F3B  # a common 32-bit mix: after two rounds each input bit moves each output bit
STEP = 0x3C6EF35F  # odd; sets places apart


def hashed(seed: int, *places: Tensor) -> Tensor:
    """31 random bits (int32) for each place: the same on every device, eager and compiled.

    Products are modulo 2^32, which int32 does everywhere; shifts are made logical by a mask.
    """
    state: Tensor | int = seed & 0x7FFFFFFF
    for place in places:
        state = _mixed(place.to(torch.int32) * STEP ^ state)
    assert isinstance(state, Tensor), "there is at least one place"
    return state & 0x7FFFFFFF


def _mixed(x: Tensor) -> Tensor:
    for _ in range(2):
        x = (x ^ (x >> 16 & 0xFFFF)) * MIX
    return x ^ (x >> 16 & 0xFFFF)
