"""prefill_attention against FlashAttention of packed sequences, and cuDNN at equal lengths."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gossamer.attention.varlen import Segments, varlen_attention
from gossamer.bench.suite import Case, PeerUnavailableError, Suite, main, tensor_bytes
from gossamer.kernels.arguments import PrefillArguments
from gossamer.ops import OPS, PrefillPlan
from gossamer.ops.checks import FLOAT_DTYPES

HEADS = ((32, 8, 128), (32, 8, 64))  # of queries, of keys, head_dim: Llama-3-8B and 3.2-1B
RAGGED = tuple((n, 0) for n in (300, 700, 1200, 1900, 400, 1500, 2000))
# Chunks (queries, start), then window and sink in tokens, or None where all keys are near.
POINTS = (
    (((2048, 0),) * 4, None, 0),
    (((1024, 0),) * 8, None, 0),
    (((8000, 0),), None, 0),
    (((8000, 8000),), None, 0),
    (RAGGED, None, 0),
    (((8000, 0),), 128, 32),
    (((2048, 6000),), 128, 32),
)
QUICK = ((((100, 0), (30, 50)), None, 0), (((100, 60),), 32, 32))
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}

Chunks = tuple[tuple[int, int], ...]


def _make_args(
    chunks: Chunks,
    rule: tuple[int | None, int],
    model: tuple[int, int, int],
    dtype: torch.dtype,
    device: str,
) -> tuple[Any, ...]:
    """Queries are a part of a wider projection, as in an engine."""
    heads, kv_heads, dims = model
    plan = PrefillPlan.under(chunks, *rule, device)
    queries, near, far = plan.rows
    make = partial(torch.randn, dtype=dtype, device=device)
    q = make(queries, heads + 2 * kv_heads, dims)[:, :heads]
    k, v = make(near, kv_heads, dims), make(near, kv_heads, dims)
    stored = (make(far, kv_heads, dims), make(far, kv_heads, dims)) if far else (None, None)
    window = -1 if rule[0] is None else rule[0]
    return q, k, v, plan.sequences, plan.tiles, *stored, dims**-0.5, window, rule[1], 0


def _flash(chunks: Chunks, *args: Any) -> Callable[[], Tensor]:
    a = PrefillArguments(*args)
    if a.window >= 0:
        raise PeerUnavailableError("it has no far keys")
    ends = [queries + start for queries, start in chunks]
    segments = Segments.of([queries for queries, _ in chunks], ends, a.q.device)
    return lambda: varlen_attention(a.q, a.k, a.v, segments, scale=a.scale)


def _cudnn(chunks: Chunks, *args: Any) -> Callable[[], Tensor]:
    a = PrefillArguments(*args)
    if a.window >= 0 or len(set(chunks)) > 1 or chunks[0][1]:
        raise PeerUnavailableError("it is for whole sequences of one length")
    q, k, v = (x.unflatten(0, (len(chunks), -1)).transpose(1, 2) for x in (a.q, a.k, a.v))

    def call() -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).flatten(0, 1)

    return call


def _oracle(*args: Any) -> Tensor:
    wide = (a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)
    result: Tensor = OPS["prefill_attention"].reference(*wide)
    return result


def _bytes(*args: Any) -> int:
    a = PrefillArguments(*args)
    return tensor_bytes(a.q, a.q, *(x for x in (a.k, a.v, a.far_k, a.far_v) if x is not None))


def _case(point: tuple[Chunks, int | None, int], model: tuple[int, int, int], device: str) -> Case:
    chunks, window, sink = point
    heads, _, dims = model
    # Each position is seen once, near or far.
    pairs = sum(n * start + n * (n + 1) // 2 for n, start in chunks)
    lengths = [f"{n}+{start}" if start else str(n) for n, start in chunks]
    if len(set(lengths)) == 1:
        lengths = [f"{len(lengths)}x{lengths[0]}"]
    peers = {"flash": _flash, "cudnn": _cudnn} if device == "cuda" else {}
    return Case(
        shape=(sum(n for n, _ in chunks), heads, dims),
        make_args=partial(_make_args, chunks, (window, sink), model),
        peers={"eager": partial(OPS["prefill_attention"], backend="reference")},
        adapted={name: partial(peer, chunks) for name, peer in peers.items()},
        bytes=_bytes,
        flops=4 * heads * dims * pairs,
        variant=",".join(lengths) + (f" window={window}" if window is not None else ""),
        dtypes=(torch.float16, torch.bfloat16) if device == "cuda" else FLOAT_DTYPES,
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    for model in HEADS[:1] if quick else HEADS:
        for point in QUICK if quick or device == "cpu" else POINTS:
            yield _case(point, model, device)


SUITE = Suite("prefill_attention", _cases, oracle=_oracle, tolerance=TOLERANCE)

if __name__ == "__main__":
    main(SUITE)
