"""Argument checks that the ops on pages of a KV cache share."""

from typing import Any

import torch
from torch import Tensor

from gossamer.ops.checks import check_range, dtype_name


def check_pool(op: str, name: str, pages: Any) -> None:
    """Pages [num_pages, ...] of any dtype that lie apart, each without gaps."""
    if not isinstance(pages, Tensor):
        raise TypeError(f"{op}: {name} is {type(pages).__name__}; must be a torch.Tensor")
    if pages.is_nested or pages.layout is not torch.strided:
        raise TypeError(f"{op}: {name} must be an ordinary, strided tensor")
    if pages.dim() < 2:
        raise ValueError(f"{op}: {name} has {pages.dim()} dimensions; must have at least 2")
    step, dense = 1, True
    for size, stride in zip(reversed(pages.shape[1:]), reversed(pages.stride()[1:]), strict=True):
        dense = dense and (size == 1 or stride == step)
        step *= size
    dense = dense and (pages.shape[0] <= 1 or pages.stride(0) >= step)
    if pages.numel() and not dense:
        raise ValueError(
            f"{op}: {name} of shape {list(pages.shape)} has strides {list(pages.stride())}; "
            "each page must be contiguous and they must lie apart"
        )


def check_lists(op: str, source: Any, target: Any) -> None:
    """int64 [m] each, on the CPU."""
    for name, value in (("source", source), ("target", target)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{op}: {name} is {type(value).__name__}; must be a torch.Tensor")
        if value.dtype is not torch.int64:
            raise TypeError(f"{op}: {name} has dtype {dtype_name(value.dtype)}; must be int64")
        if value.dim() != 1:
            raise ValueError(f"{op}: {name} has {value.dim()} dimensions; must have 1")
    if source.shape[0] != target.shape[0]:
        raise ValueError(
            f"{op}: target has {target.shape[0]} pages; must be {source.shape[0]}, as source"
        )
    for name, value in (("source", source), ("target", target)):
        if value.device.type != "cpu":
            raise ValueError(f"{op}: {name} is on {value.device}; must be on cpu")


def check_numbers(op: str, name: str, index: Tensor, num_pages: int) -> None:
    """Pages that there are; ValueError otherwise."""
    check_range(op, f"a page of {name}", index, 0, num_pages, "pages")


def check_once(op: str, target: Tensor) -> None:
    """No page twice; ValueError otherwise."""
    used, counts = target.unique(return_counts=True)
    if (counts > 1).any():
        twice = used[counts > 1][0].item()
        raise ValueError(f"{op}: page {twice} is a target twice; must be one once")
