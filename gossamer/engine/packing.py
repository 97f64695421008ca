"""Which chunks of a step share one call of attention, and where their keys lie."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gossamer.attention.varlen import Segments
from gossamer.engine.step import Span, ranges
from gossamer.engine.transfer import ints
from gossamer.kv.cache_step import PackedChunks
from gossamer.kv.paged_cache import Packing, PagedCache
from gossamer.kv.rule import ChunkMask
from gossamer.masks import Causal
from gossamer.ops.prefill_attention import PrefillPlan

# Longest chunk that shares a call of `varlen_attention`. A call per chunk and layer costs the host
# more than the kernel takes for short ones; long ones have kernels that are faster (cuDNN's).
MOST_CAUSAL = 2048
# (positions, rows of the page tables) -> slots
Slots = Callable[[Tensor, Tensor], Tensor]


def packs(span: Span, mask: ChunkMask, cache: PagedCache) -> bool:
    """Whether a chunk can share a call with others on this device."""
    if cache.packing is Packing.RULE:
        return mask.within == Causal() and mask.rule is cache.rule
    return cache.packing is Packing.CAUSAL and len(span) <= MOST_CAUSAL and mask.causal


def packed_chunks(
    chunks: Sequence[tuple[Span, ChunkMask]],
    first: int,
    packing: Packing,
    device: torch.device,
    *,
    near: Slots,
    stored: Slots,
) -> PackedChunks:
    """One call for all of them; their tokens are those of the step from `first` on.

    near, stored: slots in dense pages and in stored ones.
    """
    spans, masks = zip(*chunks, strict=True)
    own, rows = [len(span) for span in spans], [span.row for span in spans]
    sinks, edges = [mask.sinks for mask in masks], [mask.edge for mask in masks]
    past = [mask.start - mask.edge + mask.sinks for mask in masks]
    far = [len(mask.far) for mask in masks]
    keys = np.add(past, own)
    plan: Segments | PrefillPlan
    if packing is Packing.RULE:
        starts = [span.start for span in spans]
        plan = PrefillPlan.of(own, starts, keys.tolist(), edges, far, device)
    else:
        plan = Segments.of(own, keys.tolist(), device)
    far_slots = None
    if any(far):
        at = ranges([mask.far.start for mask in masks], far)
        far_slots = stored(*ints(np.stack([at, np.repeat(rows, far)]), device))
    packed = PackedChunks(slice(first, first + sum(own)), plan, far=far_slots)
    if not any(past):
        return packed
    # Near keys of a chunk: the sinks, the window before it, and its own.
    begins = np.cumsum(keys) - keys
    parts = np.stack([sinks, np.subtract(past, sinks)], 1).ravel()
    at = ranges(np.stack([np.zeros_like(edges), edges], 1).ravel(), parts)
    numbers = np.stack([at, np.repeat(rows, past), ranges(begins, past)])
    positions, past_rows, past_at = ints(numbers, device)
    own_at = ints(ranges(begins + past, own), device)
    return replace(packed, past=near(positions, past_rows), past_at=past_at, own_at=own_at)
