"""Copies of pages within a KV cache: what a shared page needs before it is written to."""

from collections.abc import Callable

import torch
from torch import Tensor

from gossamer.ops.kv_page_checks import check_lists, check_numbers, check_once, check_pool
from gossamer.ops.registry import Op


def kv_page_copy(
    pages: Tensor, source: Tensor, target: Tensor, *, backend: str | None = None
) -> None:
    """pages[target] = pages[source], byte by byte.

    pages: [num_pages, ...] of any dtype, on the CPU or a GPU, written in place; each page is
    contiguous, and they lie apart. source, target: int64 [m] on the CPU, where a cache's lists of
    pages are: each is checked, and goes to the GPU with the launch, which nothing waits for.
    Raises TypeError or ValueError, before anything is written: for a page that is not there, a page
    that is a target twice, and a page that is both a source and a target (whether it is read or
    written first would be left to chance).

        kv_page_copy(cache, torch.tensor([shared]), torch.tensor([fresh]))

    No Triton kernel: bytes are moved and nothing is computed, and the lists would have to be copied
    to the GPU first.
    """
    _op(pages, source, target, backend=backend)


def _reference(pages: Tensor, source: Tensor, target: Tensor) -> None:
    pages[target.to(pages.device)] = pages[source.to(pages.device)]


def _check(pages: Tensor, source: Tensor, target: Tensor) -> None:
    check_pool("kv_page_copy", "pages", pages)
    check_lists("kv_page_copy", source, target)


def _check_values(pages: Tensor, source: Tensor, target: Tensor) -> None:
    op = "kv_page_copy"
    check_numbers(op, "source", source, pages.shape[0])
    check_numbers(op, "target", target, pages.shape[0])
    check_once(op, target)
    both = source[torch.isin(source, target)]
    if both.numel():
        raise ValueError(
            f"{op}: page {both[0].item()} is a source and a target; must be one of them"
        )


def _example(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    return make(6, 2, 3, 8), torch.tensor([4, 0, 4]), torch.tensor([1, 5, 2])


_op = Op(
    "kv_page_copy",
    reference=_reference,
    check=_check,
    check_values=_check_values,
    fake=lambda *_: None,
    mutates=("pages",),
    example=_example,
)
