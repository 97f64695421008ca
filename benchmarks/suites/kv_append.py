"""kv_append, one row for each of many sequences: called directly and replayed in a CUDA graph."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.suites.calls import captured
from benchmarks.suites.shapes import KVCase
from gossamer.bench.suite import Case, Suite, main, tensor_bytes
from gossamer.ops import OPS
from gossamer.ops.kv_block import BLOCK_TOKENS

BLOCKS_PER_SEQUENCE = 64  # 2,048 tokens


def _make_args(case: KVCase, dtype: torch.dtype, device: str) -> tuple[Any, ...]:
    fmt = case.format(dtype)
    num_blocks = case.tokens * BLOCKS_PER_SEQUENCE
    table = torch.randperm(num_blocks, device=device).view(case.tokens, -1).int()
    last = BLOCKS_PER_SEQUENCE * BLOCK_TOKENS
    positions = torch.randint(0, last, (case.tokens,), device=device)
    blocks = case.blocks(dtype, device, num_blocks)
    options = (fmt.keep, fmt.values, fmt.scales, case.weights(device), None)
    return case.rows(dtype, device), blocks, table, positions, *options


def _bytes(x: Tensor, blocks: Tensor, table: Tensor, positions: Tensor, *_: Any) -> int:
    stored = x.shape[0] * x.shape[1] * blocks.shape[2] // BLOCK_TOKENS
    return tensor_bytes(x, positions) + 4 * x.shape[0] + stored


def _cases(device: str, quick: bool) -> Iterator[Case]:
    sequences = 4 if quick else 256
    for case in (
        KVCase(sequences, 8, 128, 40),
        KVCase(sequences, 8, 128, 40, "int8"),
        KVCase(sequences, 8, 128, None),
        KVCase(sequences, 8, 128, None, "int4"),
    ):
        for graph in (False, True) if device == "cuda" else (False,):
            yield Case(
                shape=case.shape,
                make_args=partial(_make_args, case),
                peers={"eager": partial(OPS["kv_append"], backend="reference")},
                bytes=_bytes,
                flops=0,
                variant=case.variant + (" in a CUDA graph" if graph else ""),
                prepare=captured if graph else partial,
            )


SUITE = Suite("kv_append", _cases, exact=True)

if __name__ == "__main__":
    main(SUITE)
