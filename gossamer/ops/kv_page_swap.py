"""Pages of a KV cache from one pool to another: to the host when a GPU is full, and back."""

from collections.abc import Callable

import torch
from torch import Tensor

from gossamer.ops.checks import dtype_name
from gossamer.ops.kv_page_checks import check_lists, check_numbers, check_once, check_pool
from gossamer.ops.registry import Op


def kv_page_swap(
    source_pages: Tensor,
    target_pages: Tensor,
    source: Tensor,
    target: Tensor,
    *,
    backend: str | None = None,
) -> None:
    """target_pages[target] = source_pages[source], byte by byte, between any two devices.

    source_pages, target_pages: [num_pages, ...] of one dtype, with pages of one shape; each page is
    contiguous, pages lie apart, and the pools share no memory. target_pages is written in place.
    source, target: int64 [m] on the CPU.
    Between a GPU and pinned memory of the host, one launch moves all pages and returns at once: the
    data is there when the GPU's current stream has come to it, and until then neither pool may be
    written to or freed. Memory that is not pinned is copied page by page, which the host waits for.
    Raises TypeError or ValueError, before anything is written: also for a page that is not there or
    is a target twice.

        host = torch.empty_like(cache, device="cpu", pin_memory=True)
        kv_page_swap(cache, host, torch.tensor([7, 3]), torch.tensor([0, 1]))

    No Triton kernel, as for `kv_page_copy`.
    """
    _op(source_pages, target_pages, source, target, backend=backend)


def _reference(source_pages: Tensor, target_pages: Tensor, source: Tensor, target: Tensor) -> None:
    moved = source_pages[source.to(source_pages.device)].to(target_pages.device)
    target_pages[target.to(target_pages.device)] = moved


def _check(source_pages: Tensor, target_pages: Tensor, source: Tensor, target: Tensor) -> None:
    op = "kv_page_swap"
    check_pool(op, "source_pages", source_pages)
    check_pool(op, "target_pages", target_pages)
    if target_pages.dtype is not source_pages.dtype:
        raise TypeError(
            f"{op}: target_pages has dtype {dtype_name(target_pages.dtype)}; "
            f"must be {dtype_name(source_pages.dtype)}, the dtype of source_pages"
        )
    if target_pages.shape[1:] != source_pages.shape[1:]:
        raise ValueError(
            f"{op}: target_pages has pages of shape {list(target_pages.shape[1:])}; "
            f"must be {list(source_pages.shape[1:])}, as source_pages"
        )
    check_lists(op, source, target)


def _check_values(
    source_pages: Tensor, target_pages: Tensor, source: Tensor, target: Tensor
) -> None:
    op = "kv_page_swap"
    check_numbers(op, "source", source, source_pages.shape[0])
    check_numbers(op, "target", target, target_pages.shape[0])
    check_once(op, target)
    if source_pages.device == target_pages.device and source.numel():
        (first, first_end), (second, second_end) = map(_extent, (source_pages, target_pages))
        if first < second_end and second < first_end:
            raise ValueError(
                f"{op}: source_pages and target_pages share memory; must lie apart "
                "(kv_page_copy copies within one pool)"
            )


def _extent(pages: Tensor) -> tuple[int, int]:
    """First byte and the one after the last."""
    start = pages.data_ptr()
    reach = (pages.shape[0] - 1) * pages.stride(0) + pages.numel() // pages.shape[0]
    return start, start + reach * pages.element_size()


def _example(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    return make(6, 2, 3, 8), make(4, 2, 3, 8), torch.tensor([4, 0, 4]), torch.tensor([1, 3, 2])


_op = Op(
    "kv_page_swap",
    reference=_reference,
    check=_check,
    check_values=_check_values,
    fake=lambda *_: None,
    mutates=("target_pages",),
    example=_example,
)
