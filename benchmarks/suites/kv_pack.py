"""kv_pack against its reference in plain torch (sort, gather, shifts)."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.suites.shapes import KVCase, stored_cases
from gossamer.bench.suite import Case, Suite, main, tensor_bytes
from gossamer.ops import OPS


def _make_args(case: KVCase, dtype: torch.dtype, device: str) -> tuple[Any, ...]:
    fmt = case.format(dtype)
    slots = torch.arange(case.tokens, device=device)
    options = (fmt.keep, fmt.values, fmt.scales, case.weights(device), None)
    return case.rows(dtype, device), case.blocks(dtype, device), slots, *options


def _bytes(x: Tensor, blocks: Tensor, slots: Tensor, *_: Any) -> int:
    return tensor_bytes(x, blocks, slots)


def _cases(device: str, quick: bool) -> Iterator[Case]:
    for case in stored_cases(device, quick):
        yield Case(
            shape=case.shape,
            make_args=partial(_make_args, case),
            peers={"eager": partial(OPS["kv_pack"], backend="reference")},
            bytes=_bytes,
            flops=0,
            variant=case.variant,
        )


SUITE = Suite("kv_pack", _cases, exact=True)

if __name__ == "__main__":
    main(SUITE)
