"""decode_attention over compressed caches, against attention by others over dense ones."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.decode import peers, token_slots
from benchmarks.suites.calls import captured, first_result
from benchmarks.suites.decode_cache import Args, DecodeCase
from benchmarks.suites.decode_cases import cpu_cases, cuda_cases, small
from gossamer.bench.suite import Case, Suite, Target, main
from gossamer.ops import kv_unpack
from gossamer.ops.kv_block import BLOCK_TOKENS, BlockFormat

# Sums over up to 131,072 tokens; on GPUs, keys and weights pass through 16 bits on their way into
# tensor cores. A single token left out of 131,072 is an error of 2.8e-3.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}


def oracle(*args: Any) -> Tensor:
    """Attention in float64 over what `kv_unpack` reads from the blocks, all of it."""
    a = Args(*args)
    out = torch.empty(a.q.shape, dtype=torch.float64, device=a.q.device)
    for s, length in enumerate(a.seq_lens.tolist()):
        k, v = _rows(a, s, length)
        q = a.q[s, 0].double().unflatten(0, (k.shape[1], -1))  # [kv_heads, group, head_dim]
        scores = torch.bmm(q, k.permute(1, 2, 0)) * a.scale
        out[s, 0] = torch.bmm(scores.softmax(-1), v.transpose(0, 1)).flatten(0, 1)
    return out


def _rows(a: Args, sequence: int, length: int) -> tuple[Tensor, Tensor]:
    """K and V [tokens, kv_heads, head_dim] of a sequence, its recent tokens from the window."""
    slots = token_slots(a.page_table[sequence], length, a.page_size)
    dense_from = length
    if a.dense_table is not None:
        dense_from = max((length - 1) // BLOCK_TOKENS * BLOCK_TOKENS - a.window, 0)
        recent = token_slots(a.dense_table[sequence], length, a.page_size)[dense_from:]
        dense = BlockFormat(a.q.shape[3], None, a.dense_values)
    sides = []
    for pool, window, fmt in zip(
        (a.k_blocks, a.v_blocks), (a.dense_k, a.dense_v), a.formats, strict=True
    ):
        rows = kv_unpack(pool, slots[:dense_from], fmt, torch.float32).double()
        if window is not None:
            rows = torch.cat([rows, kv_unpack(window, recent, dense, torch.float32).double()])
        sides.append(rows)
    return sides[0], sides[1]


def as_case(case: DecodeCase, device: str) -> Case:
    adapted = peers(device, case.dtype, case.head_dim) if case.has_peers else {}
    facts = {"dense_bytes": case.dense_bytes, "byte_limit": case.dense_bytes / case.bytes}
    return Case(
        shape=case.shape,
        make_args=lambda _, device: case.args(device),
        peers={},
        bytes=lambda *_: case.bytes,
        flops=case.flops,
        variant=case.variant,
        wrap=first_result,
        adapted=adapted,
        prepare=captured if case.graph else partial,
        dtypes=(case.dtype,),
        backends=case.backends,
        facts=facts,
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    if quick:
        everything = (small(case) for case in (*cuda_cases(), *cpu_cases()))
        cases = [c for c in dict.fromkeys(everything) if device == "cuda" or not c.graph]
    else:
        cases = list(cuda_cases() if device == "cuda" else cpu_cases())
    for case in cases:
        yield as_case(case, device)


TARGET = Target(
    worst=0.65,
    reason="next to the fastest attention over a dense cache; one sequence of 4,096 tokens is over "
    "in 15 us, where unpacking costs more than the bytes that it saves",
)

SUITE = Suite("decode_attention", _cases, oracle=oracle, tolerance=TOLERANCE, target=TARGET)

if __name__ == "__main__":
    main(SUITE)
