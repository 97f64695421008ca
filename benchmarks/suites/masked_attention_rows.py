"""masked_attention_rows against SDPA with a mask tensor: few keys per query, or few queries."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.suites.calls import first_result
from gossamer.bench.measure import MAX_RELATIVE_ERROR
from gossamer.bench.suite import Case, Suite, main
from gossamer.ops import OPS

OP = "masked_attention_rows"
HEADS, HEAD_DIM = 12, 64
# Exponentials and sums of up to 256 products in float32: 8e-7 on a GPU, SDPA's too.
TOLERANCE = {**MAX_RELATIVE_ERROR, torch.float32: 2e-6}


def _sdpa(q: Tensor, k: Tensor, v: Tensor, row_offsets: Tensor, keys: Tensor, *_: Any) -> Any:
    """The same mask as a tensor, made before the clock starts."""
    mask = torch.zeros(q.shape[2], k.shape[2], dtype=torch.bool, device=keys.device)
    queries = torch.arange(q.shape[2], device=keys.device)
    mask[torch.repeat_interleave(queries, row_offsets.diff().long()), keys.long()] = True
    return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _oracle(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    return OPS[OP].reference(q.double(), k.double(), v.double(), *rest)[0]


def _case(batch: int, queries: int, context: int, seen: int) -> Case:
    """Each query sees `seen` random keys."""

    def make_args(dtype: torch.dtype, device: str) -> tuple[Any, ...]:
        def make(tokens: int) -> Tensor:
            return torch.randn(batch, HEADS, tokens, HEAD_DIM, dtype=dtype, device=device)

        chosen = torch.rand(queries, context).argsort(1)[:, :seen].sort(1).values
        offsets = torch.arange(queries + 1, dtype=torch.int32, device=device) * seen
        keys = chosen.flatten().to(device, torch.int32)
        scale = HEAD_DIM**-0.5
        return (make(queries), make(context), make(context), offsets, keys, None, 1, 1, scale, 0.0)

    pairs = batch * HEADS * queries * seen
    return Case(
        shape=(batch, HEADS, queries, context, HEAD_DIM),
        make_args=make_args,
        peers={},
        adapted={"sdpa": _sdpa},
        # A key and a value for every pair: neighbours rarely share one.
        bytes=lambda q, *_: (2 * pairs * HEAD_DIM + 2 * q.numel()) * q.element_size(),
        flops=4 * pairs * HEAD_DIM,
        variant=f"seen={seen}",
        wrap=first_result,
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    if quick:
        yield _case(1, 64, 256, 8)
        return
    yield _case(1, 1, 16_384, 256)
    for batch in (1,) if device == "cpu" else (1, 16):
        for seen in (16, 64):
            yield _case(batch, 1024, 1024, seen)
            yield _case(batch, 4096, 4096, seen)


SUITE = Suite(OP, _cases, oracle=_oracle, tolerance=TOLERANCE, best="cpu")

if __name__ == "__main__":
    main(SUITE)
