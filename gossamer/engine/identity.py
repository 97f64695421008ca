"""What K and V depend on beside the tokens, as a digest that processes can compare."""

import hashlib
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from gossamer.kv import Calibration, KVConfig
from gossamer.models import Source
from gossamer.models.source import StoredTensor

FORMAT = 1  # of rows in pages; another number and pages of older versions are not found
SAMPLE = 4096  # values of each weight, at least: training changes all of them


def cache_root(
    source: Source,
    kv: KVConfig,
    dtype: torch.dtype,
    device: torch.device,
    calibration: Calibration | None,
    weights: str = "auto",
) -> bytes:
    """The same in all processes that have the same weights, cache and calibration; else another.

    Reads a part of each of the source's tensors. In which files or order they are does not matter.
    """
    digest = hashlib.blake2b(repr((FORMAT, source.config, str(kv), dtype, weights)).encode())
    for part in sorted(
        _digest(name, tensor.shape, _middle(tensor), dtype)
        for name, tensor in source.tensors(dtype=dtype, device=device)
    ):
        digest.update(part)
    if calibration is not None:
        for name, tensor in sorted(calibration.tensors.items()):
            digest.update(_digest(name, tensor.shape, tensor, torch.float32))
    return digest.digest()


def _middle(tensor: StoredTensor) -> Tensor:
    """Rows from the middle, as few as have SAMPLE values."""
    rows = tensor.shape[0]
    count = min(rows, -(-SAMPLE // max(1, prod(tensor.shape[1:]))))
    first = (rows - count) // 2
    return tensor[(slice(first, first + count),)]


def _digest(name: str, shape: Sequence[int], values: Tensor, dtype: torch.dtype) -> bytes:
    content = values.to("cpu", dtype).contiguous().view(torch.uint8)
    return hashlib.blake2b(f"{name} {list(shape)} ".encode() + content.numpy().tobytes()).digest()
