"""kv_page_copy against indexing in plain torch."""

from collections.abc import Iterator

import torch
from torch import Tensor

from gossamer.bench.suite import Case, Suite, main
from gossamer.ops.checks import FLOAT_DTYPES

PAGE = (64, 8, 128)  # tokens, heads, channels: K or V of a layer of Llama-3-8B, 128 KB in 16 bits


def _eager(pages: Tensor, source: Tensor, target: Tensor) -> None:
    pages[target.to(pages.device)] = pages[source.to(pages.device)]


def _case(pages: int, copies: int, dtypes: tuple[torch.dtype, ...]) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
        order = torch.randperm(pages)
        pool = torch.randn(pages, *PAGE, device=device).to(dtype)
        return pool, order[:copies], order[copies : 2 * copies]

    return Case(
        shape=(pages, *PAGE),
        make_args=make_args,
        peers={"eager": _eager},
        bytes=lambda pool, source, _: 2 * copies * pool[0].numel() * pool.element_size(),
        flops=0,
        variant=f"copies={copies}",
        dtypes=dtypes,
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    if quick:
        yield _case(16, 4, FLOAT_DTYPES)
        return
    dtypes = (torch.float16,)
    for pages, copies in [(64, 1), (256, 32)] + ([] if device == "cpu" else [(4096, 1024)]):
        yield _case(pages, copies, dtypes)


SUITE = Suite("kv_page_copy", _cases, exact=True)

if __name__ == "__main__":
    main(SUITE)
