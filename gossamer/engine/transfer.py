"""Numbers from the host to the device, without waiting for it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def put(values: Tensor, device: torch.device) -> Tensor:
    """On the device. Pinned before, since a copy of pageable memory would wait for the device."""
    pinned = values.pin_memory() if device.type == "cuda" else values
    return pinned.to(device, non_blocking=True)


def ints(values: Any, device: torch.device) -> Tensor:
    """int64, of a list, nested lists or an array."""
    return put(torch.tensor(values, dtype=torch.int64), device)


def floats(values: Sequence[float], device: torch.device) -> Tensor:
    return put(torch.tensor(values, dtype=torch.float32), device)
