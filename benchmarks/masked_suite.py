"""The op masked_attention alone, against SDPA with the same mask as a tensor.

For `gossamer check-op`: one tile size, masks that leave most of the pairs out. Its own driver
(masked_attention.py) has all kernels, tile sizes and peers, also where SDPA wins.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.masked_plans import HEADS, STOF
from gossamer.bench.suite import Case, Suite
from gossamer.masks import TileMap, named
from gossamer.masks.work import piece_limit, work_list
from gossamer.ops import OPS
from gossamer.ops.checks import FLOAT_DTYPES

OP = "masked_attention"
HEAD_DIM, TILE, LEAST_KEYS = 64, (64, 64), 256
# Weights are rounded to 16 bits for the products; sums are of up to 4,096 of them.
TOLERANCE = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}


def _output(call: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    """Without the lse, which SDPA does not give."""
    return lambda *args: call(*args)[0]


def _oracle(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    return OPS[OP].reference(q.double(), k.double(), v.double(), *rest)[0]


def _case(device: str, name: str, batch: int, n: int) -> Case:
    mask = named(name, n)
    shape = (batch, HEADS, n, HEAD_DIM)

    def make_args(dtype: torch.dtype, device: str) -> tuple[Any, ...]:
        q, k, v = (torch.randn(shape, dtype=dtype, device=device) for _ in range(3))
        tiles = TileMap.build(mask, n, n, TILE, device)
        work = None
        if device == "cuda":
            sms = torch.cuda.get_device_properties(device).multi_processor_count
            replicas = batch // tiles.batch * (HEADS // tiles.heads)
            work = work_list(tiles, piece_limit(tiles, replicas, sms, LEAST_KEYS))
        lists = (tiles.offsets, tiles.tiles, tiles.bits, tiles.order, work, None)
        return (q, k, v, *lists, HEAD_DIM**-0.5, 0.0, False)

    def eager(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Callable[[], Tensor]:
        dense = mask.dense(n, n, q.device)
        return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=dense)

    seen = TileMap.build(mask, n, n, TILE, "cpu").counts().density
    return Case(
        shape=shape,
        make_args=make_args,
        peers={},
        adapted={"eager": eager},
        bytes=lambda q, *_: 4 * q.numel() * q.element_size(),
        flops=int(4 * batch * HEADS * HEAD_DIM * seen * n * n),
        variant=f"mask={name}",
        wrap=_output,
        dtypes=FLOAT_DTYPES if device == "cpu" else (torch.float16, torch.bfloat16),
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    if quick:
        yield _case(device, "stof-longformer", 1, 256)
        return
    for batch, n in ((1, 1024),) if device == "cpu" else ((1, 1024), (16, 1024), (16, 4096)):
        for name in STOF:
            yield _case(device, name, batch, n)


SUITE = Suite(OP, _cases, oracle=_oracle, tolerance=TOLERANCE)
