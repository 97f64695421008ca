"""How far counts are from what chance makes of them."""

import math

import torch


def surprise(counts, expected):
    """How many standard deviations chi-square is off; a fair source has |z| < 5, one in 10**6."""
    counts, expected = (torch.as_tensor(x).double() for x in (counts, expected))
    chi = ((counts - expected) ** 2 / expected).sum().item()
    freedom = counts.numel() - 1
    # Wilson and Hilferty: the cube root of chi-square is nearly normal.
    return ((chi / freedom) ** (1 / 3) - 1 + 2 / (9 * freedom)) / math.sqrt(2 / (9 * freedom))
