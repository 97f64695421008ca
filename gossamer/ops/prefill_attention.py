"""Attention of chunks of prompts, packed one after the other, to near and far keys."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from gossamer.kernels.arguments import PrefillArguments, named
from gossamer.ops.prefill_checks import COLUMNS, TILE, check, check_plan_values
from gossamer.ops.prefill_reference import keys_of, reference
from gossamer.ops.registry import Op


@dataclass(frozen=True, eq=False)
class PrefillPlan:
    """Chunks of sequences whose queries and keys lie one after the other, for all layers of a step.

    rows: of queries, near keys and far keys. sequences: int32 [chunks, 7]: first row in q, queries,
    position of the first one, first row of near keys, how many, edge, first row of far keys. tiles:
    int32 [tiles, 2], chunk and number of 128 queries in it, those with most keys first, so that all
    SMs end at the same time.
    """

    rows: tuple[int, int, int]
    sequences: Tensor
    tiles: Tensor

    @classmethod
    def of(
        cls,
        queries: Sequence[int],
        starts: Sequence[int],
        near: Sequence[int],
        edges: Sequence[int],
        far: Sequence[int],
        device: torch.device | str,
    ) -> "PrefillPlan":
        """Numbers of each chunk; on the device in one piece, without waiting for it.

        queries: tokens, the first at position `starts`. near: rows of near keys, the first
        min(sink, edge) positions and then all from `edges` to the last query. far: rows of far
        keys, from position `sink` on. `keys_of` has the three for a rule.
        """
        first = [list(accumulate(counts, initial=0)) for counts in (queries, near, far)]
        rows = list(
            zip(
                *(first[0][:-1], queries, starts, first[1][:-1], near, edges, first[2][:-1]),
                strict=True,
            )
        )
        # By the last position that a tile sees.
        tiles = sorted(
            (start + min(at + TILE, count), s, at // TILE)
            for s, (count, start) in enumerate(zip(queries, starts, strict=True))
            for at in range(0, count, TILE)
        )
        # Tiles first: pairs are read at once, and lie in multiples of 8 bytes like this.
        numbers = [n for _, *tile in reversed(tiles) for n in tile]
        split = len(numbers)
        numbers += [n for row in rows for n in row]
        on = torch.device(device)
        host = torch.tensor(numbers, dtype=torch.int32, pin_memory=on.type == "cuda")
        there = host.to(on, non_blocking=True)
        totals = (first[0][-1], first[1][-1], first[2][-1])
        return cls(totals, there[split:].view(-1, COLUMNS), there[:split].view(-1, 2))

    @classmethod
    def under(
        cls,
        chunks: Sequence[tuple[int, int]],
        window: int | None,
        sink: int,
        device: torch.device | str,
    ) -> "PrefillPlan":
        """Of chunks (queries, start), with the keys that they need under this rule."""
        keys = [keys_of(*chunk, window, sink) for chunk in chunks]
        queries, starts = [n for n, _ in chunks], [start for _, start in chunks]
        near, edges, far = ([key[i] for key in keys] for i in range(3))
        return cls.of(queries, starts, near, edges, far, device)


def prefill_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: PrefillPlan,
    far: tuple[Tensor, Tensor] | None = None,
    *,
    scale: float | None = None,
    window: int | None = None,
    sink: int = 0,
    sliding: int = 0,
    backend: str | None = None,
) -> Tensor:
    """Attend with chunks of prompts to the keys of their sequences, near ones and far ones.

    q: [T, Hq, D]; near keys and values k, v: [Tn, Hk, D], Hq a multiple of Hk; far keys and values
    far: two of [Tf, Hk, D], or None; one dtype (float32, float16, bfloat16) and device; any
    strides, but 1 in the last dimension. plan: where chunks and their keys lie, see `PrefillPlan`;
    its numbers on a GPU are not looked at.

    window None: a query sees the near keys up to its own position. Else the query at position p
    sees, with b = p // 32, far keys below position 32 b - window, and near keys up to p from there
    on or below `sink`: every position once. window and sink: in tokens, multiples of 32. sliding:
    only the last `sliding` positions, 0 for all. scale: of scores, > 0; D ** -0.5 if None.

    Returns [T, Hq, D], contiguous; float32 inside, weights rounded to the dtype by the CUDA kernel.
    A query that sees nothing gives zeros. What is NaN or infinite in v may reach all queries of the
    128 of a tile, but not those of other sequences. Inference only. Raises TypeError (dtype) or
    ValueError (shape, strides, device, numbers).
    """
    queries, near, far_keys = plan.rows
    there = 0 if far is None else len(far[0])
    if isinstance(q, Tensor) and (len(q) != queries or len(k) < near or there < far_keys):
        raise ValueError(
            f"prefill_attention: there are {len(q)} queries, {len(k)} near keys and {there} far "
            f"keys; must be {queries}, {near} or more and {far_keys} or more, as the plan says"
        )
    result: Tensor = _op(
        *(q, k, v, plan.sequences, plan.tiles, *(far or (None, None))),
        float(q.shape[-1]) ** -0.5 if scale is None else scale,
        *(-1 if window is None else window, sink, sliding),
        backend=backend,
    )
    return result


TUNED = "fp16 and bf16, head_dim 64 and 128, rows in multiples of 16 bytes, on sm_90"


def takes_prefill(q: Tensor, device: torch.device) -> bool:
    """Whether there is a CUDA kernel on this device for queries like these [tokens, heads, D]."""
    if device.type != "cuda" or "cuda" not in _op.available("cuda"):
        return False
    return _is_tuned(q, device) and _lies_well(q)


def _is_tuned(q: Tensor, device: torch.device) -> bool:
    if (
        q.dtype not in (torch.float16, torch.bfloat16)
        or q.dim() != 3
        or q.shape[2] not in (64, 128)
    ):
        return False
    found = torch.cuda.get_device_properties(device)
    return (found.major, found.minor) == (9, 0)


@named(PrefillArguments)
def _limits(a: PrefillArguments) -> str | None:
    """Why the CUDA kernel does not take these arguments."""
    rows = (x for x in (a.q, a.k, a.v, a.far_k, a.far_v) if x is not None)
    if _is_tuned(a.q, a.q.device) and all(_lies_well(x) for x in rows):
        return None
    return f"the CUDA kernel takes {TUNED}"


def _lies_well(x: Tensor) -> bool:
    """In multiples of 16 bytes, as TMA wants it. Storage begins at such a place."""
    return all(s > 0 and s % 8 == 0 for s in x.stride()[:-1]) and x.storage_offset() % 8 == 0


def _example(make: Callable[..., Tensor]) -> tuple[Any, ...]:
    """Two chunks with a window and a sink of 32 tokens: of 130 tokens, and of 5 after 100."""
    q = make(135, 4, 64)
    plan = PrefillPlan.under([(130, 0), (5, 100)], 32, 32, q.device)
    _, near, far = plan.rows
    keys = make(near, 2, 64), make(near, 2, 64)
    far_keys = make(far, 2, 64), make(far, 2, 64)
    return q, *keys, plan.sequences, plan.tiles, *far_keys, 0.125, 32, 32, 0


_op = Op(
    "prefill_attention",
    reference=reference,
    check=check,
    check_values=check_plan_values,
    fake=named(PrefillArguments)(lambda a: a.q.new_empty(a.q.shape)),
    example=_example,
    native_backends=("cuda",),
    limits=_limits,
    tuned=TUNED,
    # Of outputs around 0.3: weights rounded to the dtype.
    tolerance={torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3},
)
