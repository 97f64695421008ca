"""What K and V depend on beside the tokens, as a digest that processes can compare."""

import hashlib

import torch
from torch import Tensor

from gossamer.kv import Calibration, KVConfig
from gossamer.models import Source
from gossamer.models.source import WHOLE

FORMAT = 1  # of rows in pages; another number and pages of older versions are not found
SAMPLE = 4096  # values of each weight: training changes all of them


def cache_root(
    source: Source,
    kv: KVConfig,
    dtype: torch.dtype,
    device: torch.device,
    calibration: Calibration | None,
) -> bytes:
    """The same in all processes that have the same weights, cache and calibration; else another.

    Reads the source's weights once more.
    """
    digest = hashlib.blake2b(repr((FORMAT, source.config, str(kv), dtype)).encode())
    for name, tensor in source.tensors(dtype=dtype, device=device):
        _add(digest, name, tensor[WHOLE], dtype, SAMPLE)
    if calibration is not None:
        for name, tensor in calibration.tensors.items():
            _add(digest, name, tensor, torch.float32, tensor.numel())
    return digest.digest()


def _add(digest: hashlib.blake2b, name: str, tensor: Tensor, dtype: torch.dtype, most: int) -> None:
    """The name, the shape and values from the middle of a tensor."""
    first = max(0, (tensor.numel() - most) // 2)
    values = tensor.reshape(-1)[first : first + most].to("cpu", dtype).contiguous()
    digest.update(f"{name} {list(tensor.shape)} ".encode())
    digest.update(values.view(torch.uint8).numpy().data)
