"""kv_page_swap against plain torch: pages by index, and one copy for each page.

On a GPU, between its memory and pinned memory of the host; GB/s are the bus's in one direction.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from gossamer.bench.suite import Call, Case, Suite, main
from gossamer.ops.checks import FLOAT_DTYPES

PAGE = (64, 8, 128)  # tokens, heads, channels: K or V of a layer of Llama-3-8B, 128 KB in 16 bits


def _eager(source_pages: Tensor, target_pages: Tensor, source: Tensor, target: Tensor) -> None:
    moved = source_pages[source.to(source_pages.device)].to(target_pages.device)
    target_pages[target.to(target_pages.device)] = moved


def _page_by_page(
    source_pages: Tensor, target_pages: Tensor, source: Tensor, target: Tensor
) -> None:
    for i, j in zip(source.tolist(), target.tolist(), strict=True):
        target_pages[j].copy_(source_pages[i], non_blocking=True)


def _by_default(call: Call) -> Call:
    """Without the name of a backend: the first pool, which counts for that, may be the host's."""
    return partial(call, backend=None)


def _case(direction: str, pages: int, dtypes: tuple[torch.dtype, ...]) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ours, other = (torch.randn(2 * pages, *PAGE, device=device).to(dtype) for _ in range(2))
        if device == "cuda":
            other = other.cpu().pin_memory()
        pools = (ours, other) if direction == "out" else (other, ours)
        return *pools, torch.randperm(2 * pages)[:pages], torch.randperm(2 * pages)[:pages]

    return Case(
        shape=(pages, *PAGE),
        make_args=make_args,
        peers={"eager": _eager, "copies": _page_by_page},
        bytes=lambda pool, *_: pages * pool[0].numel() * pool.element_size(),
        flops=0,
        variant=direction,
        wrap=_by_default,
        dtypes=dtypes,
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    dtypes = FLOAT_DTYPES if quick else (torch.float16,)
    for pages in (4,) if quick else (16,) if device == "cpu" else (1, 16, 256):
        for direction in ("out", "in"):
            yield _case(direction, pages, dtypes)


SUITE = Suite("kv_page_swap", _cases, exact=True)

if __name__ == "__main__":
    main(SUITE)
