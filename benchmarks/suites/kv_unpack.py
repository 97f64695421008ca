"""kv_unpack against its reference in plain torch."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.suites.shapes import KVCase, stored_cases
from gossamer.bench.suite import Case, Suite, main, tensor_bytes
from gossamer.ops import OPS, kv_pack


def _make_args(case: KVCase, dtype: torch.dtype, device: str) -> tuple[Any, ...]:
    fmt = case.format(dtype)
    blocks, slots = case.blocks(dtype, device), torch.arange(case.tokens, device=device)
    kv_pack(case.rows(dtype, device), blocks, slots, fmt)
    return blocks, slots, fmt.head_dim, fmt.keep, fmt.values, fmt.scales, dtype


def _bytes(blocks: Tensor, slots: Tensor, head_dim: int, *options: Any) -> int:
    element = torch.empty(0, dtype=options[-1]).element_size()
    return tensor_bytes(blocks, slots) + slots.numel() * blocks.shape[1] * head_dim * element


def _cases(device: str, quick: bool) -> Iterator[Case]:
    for case in stored_cases(device, quick):
        if case.weighted:  # like any other once it is stored
            continue
        yield Case(
            shape=case.shape,
            make_args=partial(_make_args, case),
            peers={"eager": partial(OPS["kv_unpack"], backend="reference")},
            bytes=_bytes,
            flops=0,
            variant=case.variant,
        )


SUITE = Suite("kv_unpack", _cases, exact=True)

if __name__ == "__main__":
    main(SUITE)
