"""Attention of the newest tokens over a paged cache, straight from its compressed blocks."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.kernels.arguments import DecodeArguments, named
from gossamer.ops import kv_codec
from gossamer.ops.decode_checks import check, check_values
from gossamer.ops.decode_reference import reference
from gossamer.ops.kv_block import BLOCK_TOKENS, BlockFormat, has_codes
from gossamer.ops.registry import Op


@dataclass(frozen=True, eq=False)
class DenseWindow:
    """What queries see uncompressed: their own block, `tokens` before it and the first `sink`.

    k_blocks, v_blocks: uint8 [num_blocks, kv_heads, bytes], dense blocks of `values` (fp16, bf16
    or fp32). table: int32 [sequences, max_pages], as `page_table` of `decode_attention`; only the
    pages that some query sees this way are read. tokens, sink: multiples of 32.
    """

    k_blocks: Tensor
    v_blocks: Tensor
    table: Tensor
    tokens: int
    sink: int = 0
    values: str = "fp16"


def decode_attention(
    q: Tensor,
    k_blocks: Tensor,
    v_blocks: Tensor,
    page_table: Tensor,
    seq_lens: Tensor,
    k_fmt: BlockFormat,
    v_fmt: BlockFormat,
    *,
    window: DenseWindow | None = None,
    page_size: int = BLOCK_TOKENS,
    scale: float | None = None,
    softcap: float = 0.0,
    sliding: int = 0,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend with q to the tokens of each sequence; also the logarithm of the sum of exponentials.

    q: [sequences, q_len, heads, head_dim], q_len 1 to 8: the queries of the last q_len tokens of
    each sequence (or [sequences, heads, head_dim] for one). k_blocks, v_blocks: uint8 [num_blocks,
    kv_heads, fmt.nbytes], in the formats k_fmt and v_fmt; heads is kv_heads times 1 to 16.
    page_table: int32 [sequences, max_pages]; page p of a pool is its blocks p * page_size / 32
    onwards. seq_lens: int32 [sequences], tokens with the queries' own.

    The query at position i sees tokens 0 to i, or the last `sliding` of them. Block c of 32 tokens
    comes from `window` if c >= i // 32 - window.tokens / 32 or c < window.sink / 32, else
    from the compressed blocks; without a window everything comes from there. scale: of q k, by
    default 1 / sqrt(head_dim). softcap: c tanh(x / c) of the scaled score, 0 for none.

    Returns out like q, lse float32 [sequences, q_len, heads] (natural logarithm). A query that
    sees nothing gives zeros and -inf. Raises TypeError or ValueError; lengths and page numbers on
    a GPU are not looked at by the host: wrong ones give NaN for their sequence.
    """
    single = isinstance(q, Tensor) and q.dim() == 3
    queries = q.unsqueeze(1) if single else q
    dense_k = dense_v = dense_table = None
    dense_values, tokens, sink = "fp16", 0, 0
    if window is not None:
        dense_k, dense_v, dense_table = window.k_blocks, window.v_blocks, window.table
        dense_values, tokens, sink = window.values, window.tokens, window.sink
    # As in DecodeArguments, which would take 0.5 us to make, and 5 us by name.
    out, lse = _op(
        queries, k_blocks, v_blocks, page_table, seq_lens, dense_k, dense_v, dense_table,
        k_fmt.keep, k_fmt.values, str(k_fmt.scales), v_fmt.keep, v_fmt.values, str(v_fmt.scales),
        dense_values, tokens, sink, page_size,
        1 / math.sqrt(k_fmt.head_dim) if scale is None else scale, softcap, sliding,
        backend=backend,
    )  # fmt: skip
    return (out.squeeze(1), lse.squeeze(1)) if single else (out, lse)


def _fake(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


TUNED = (
    "fp16 and bf16 queries, a window of the queries' type; K and V both dense codes (int8, "
    "fp8_e4m3, int4, int3, int2 or a profile, any scales) with head_dim 64, 80, 96, 128 or 256; "
    "with head_dim 64 and 128 also both sparse (values of the queries' type, or codes with any "
    "scales), both dense of the queries' type, or K dense int4 with scales per channel and V sparse"
)
_PLAIN = {torch.float16: "fp16", torch.bfloat16: "bf16"}
_CODES = ("int8", "fp8_e4m3", "int4", "int3", "int2")


@named(DecodeArguments)
def _limits(a: DecodeArguments) -> str | None:
    """Why the CUDA kernel does not take these arguments."""
    plain = _PLAIN.get(a.q.dtype)
    if plain is not None and (a.dense_k is None or a.dense_values == plain) and _reads(a, plain):
        return None
    return f"the CUDA kernels take {TUNED}"


def _reads(a: DecodeArguments, plain: str) -> bool:
    head_dim = a.q.size(-1)
    if has_codes(a.k_keep, a.k_values) and has_codes(a.v_keep, a.v_values):
        return head_dim in (64, 80, 96, 128, 256)
    if head_dim not in (64, 128):
        return False
    if a.v_keep is None:
        return a.k_keep is None and a.k_values == a.v_values == plain
    if a.v_values not in (plain, *_CODES):
        return False
    if a.k_keep is None:
        return a.k_values == "int4" and a.k_scales == "channel"
    return a.k_values in (plain, *_CODES)


def _example(make: Callable[..., Tensor]) -> DecodeArguments:
    """Two sequences over sparse keys and values with a window, pages in disorder."""
    like = make(1)
    values = _PLAIN.get(like.dtype, "fp32")
    k_fmt, v_fmt = BlockFormat(64, 24, "int8"), BlockFormat(64, 20, "int4")
    dense, pools = BlockFormat(64, None, values), []
    for fmt in (k_fmt, v_fmt, dense, dense):
        pool = torch.zeros(5, 2, fmt.nbytes, dtype=torch.uint8)
        kv_codec.write(torch.randn(160, 2, 64), pool, torch.arange(160), fmt, None, None)
        pools.append(pool.to(like.device))
    table = torch.tensor([[4, 1, 2, 0], [3, 0, 0, 0]], dtype=torch.int32, device=like.device)
    lens = torch.tensor([100, 7], dtype=torch.int32, device=like.device)
    return DecodeArguments(
        q=make(2, 1, 4, 64), k_blocks=pools[0], v_blocks=pools[1], page_table=table, seq_lens=lens,
        dense_k=pools[2], dense_v=pools[3], dense_table=table,
        k_keep=24, k_values="int8", k_scales="row", v_keep=20, v_values="int4", v_scales="row",
        dense_values=values, window=32, sink=0, page_size=32, scale=0.125, softcap=0.0, sliding=0,
    )  # fmt: skip


_op = Op(
    "decode_attention",
    reference=reference,
    check=check,
    check_values=check_values,
    fake=_fake,
    example=_example,
    limits=_limits,
    tuned=TUNED,
    # Of outputs around 0.3: K and V in the queries' type, weights rounded to it.
    tolerance={torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3},
    triton="gossamer.kernels.decode_attention:decode_attention",
)
