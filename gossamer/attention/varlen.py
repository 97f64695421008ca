"""Causal attention of several sequences that lie one after the other: one call for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from gossamer.attention.masked_attention import masked_attention
from gossamer.masks import Causal, Mask
from gossamer.masks.tiles import put

HALVES = (torch.float16, torch.bfloat16)
HEAD_DIMS = range(8, 257, 8)


@dataclass(frozen=True, eq=False)
class Segments:
    """Where sequences begin in packed tensors, the same for all layers; see `varlen_attention`.

    q_offsets, kv_offsets: int32 [sequences + 1] on the device.
    """

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    q_offsets: Tensor
    kv_offsets: Tensor

    @classmethod
    def of(
        cls, q_lens: Sequence[int], kv_lens: Sequence[int], device: torch.device | str
    ) -> "Segments":
        """ValueError unless each sequence has at least one query, and as many keys or more."""
        if len(q_lens) != len(kv_lens) or not q_lens:
            raise ValueError(
                f"there are {len(q_lens)} q_lens and {len(kv_lens)} kv_lens; must be as many, "
                "at least one"
            )
        for queries, keys in zip(q_lens, kv_lens, strict=True):
            if not 1 <= queries <= keys:
                raise ValueError(
                    f"a sequence has {queries} queries and {keys} keys; must be 1 to {keys} queries"
                )
        each = [list(accumulate(lens, initial=0)) for lens in (q_lens, kv_lens)]
        offsets = put(torch.tensor(each, dtype=torch.int32), torch.device(device))
        return cls(tuple(q_lens), tuple(kv_lens), *offsets)


def is_one_kernel(q: Tensor) -> bool:
    """Whether `varlen_attention` is one for such queries [tokens, heads, head_dim] on a GPU."""
    return q.dtype in HALVES and q.shape[-1] in HEAD_DIMS


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Segments,
    *,
    scale: float | None = None,
    sliding: int = 0,
) -> Tensor:
    """Each query sees the keys of its sequence up to its own place; the last one sees all.

    q: [tokens, heads, head_dim]; k, v: [keys, kv_heads, head_dim]; sequences as `segments` says.
    scale: head_dim ** -0.5 if None. sliding: how many keys a query sees at most, 0 for all.
    Returns like q. FlashAttention in float16 and bfloat16 on a GPU, whatever the lengths are: no
    plans to make for a new one. Elsewhere `masked_attention` of each. ValueError where the
    segments are for other lengths; TypeError or ValueError as `masked_attention`.
    """
    lengths = (sum(segments.q_lens), sum(segments.kv_lens))
    if (q.shape[0], k.shape[0]) != lengths or v.shape[0] != k.shape[0]:
        raise ValueError(
            f"there are {q.shape[0]} queries, {k.shape[0]} keys and {v.shape[0]} values; "
            f"must be {lengths[0]}, and {lengths[1]} of both, as the segments say"
        )
    scale = float(q.shape[-1]) ** -0.5 if scale is None else scale
    if not (q.is_cuda and is_one_kernel(q)):
        return _one_by_one(q, k, v, segments, scale, sliding)
    q, k, v = (x if _lies_well(x) else x.contiguous() for x in (q, k, v))
    out: Tensor = torch.ops.aten._flash_attention_forward(
        *(q, k, v, segments.q_offsets, segments.kv_offsets),
        *(max(segments.q_lens), max(segments.kv_lens), 0.0, True, False),
        scale=scale,
        window_size_left=sliding - 1 if sliding else None,
        window_size_right=0 if sliding else None,
    )[0]
    return out


def _lies_well(x: Tensor) -> bool:
    """Rows in multiples of 16 bytes, which the kernel reads at a time; see plans.py."""
    token, head, channel = x.stride()
    unit = 16 // x.element_size()
    return channel == 1 and token > 0 and not (token | head) % unit and x.data_ptr() % 16 == 0


def _one_by_one(
    q: Tensor, k: Tensor, v: Tensor, segments: Segments, scale: float, sliding: int
) -> Tensor:
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lens = zip(segments.q_lens, segments.kv_lens, strict=True)
    query = key = 0
    for queries, keys in lens:
        part, its = slice(query, query + queries), slice(key, key + keys)
        q_, k_, v_ = (x.transpose(0, 1)[None] for x in (q[part], k[its], v[its]))
        mask = _mask(queries, keys, sliding)
        out[part] = masked_attention(q_, k_, v_, mask, scale=scale)[0].transpose(0, 1)
        query, key = part.stop, its.stop
    return out


def _mask(queries: int, keys: int, sliding: int) -> Mask:
    before = keys - queries
    return Causal(before) & ~Causal(before - sliding) if sliding else Causal(before)
