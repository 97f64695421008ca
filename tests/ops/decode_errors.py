"""Calls of decode_attention that every backend must refuse, in these words."""

from functools import partial

import torch

from gossamer.ops import BlockFormat

K, V, DENSE = BlockFormat(64, 24, "int8"), BlockFormat(64, 40), BlockFormat(64)


def _bytes(fmt: BlockFormat, heads: int = 2, blocks: int = 4) -> torch.Tensor:
    return torch.zeros(blocks, heads, fmt.nbytes, dtype=torch.uint8)


k_bytes, v_bytes, dense_bytes = (partial(_bytes, fmt) for fmt in (K, V, DENSE))


def ints(*values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _args(**changes):
    args = {
        "q": torch.zeros(2, 1, 4, 64),
        "k_blocks": _bytes(K),
        "v_blocks": _bytes(V),
        "page_table": ints([3, 1], [2, 0]),
        "seq_lens": ints(40, 7),
        "dense_k": None,
        "dense_v": None,
        "dense_table": None,
        "k_keep": 24,
        "k_values": "int8",
        "k_scales": "row",
        "v_keep": 40,
        "v_values": "fp16",
        "v_scales": "none",
        "dense_values": "fp16",
        "window": 0,
        "sink": 0,
        "page_size": 32,
        "scale": 0.125,
        "softcap": 0.0,
        "sliding": 0,
    }
    assert set(changes) <= set(args)
    return tuple((args | changes).values())


WINDOW = {
    "dense_k": _bytes(DENSE),
    "dense_v": _bytes(DENSE),
    "dense_table": ints([3, 1], [2, 0]),
}


def _windowed(**changes):
    return _args(**WINDOW | changes)


def arguments(*, windowed: bool, **changes):
    """Good arguments but for these changes."""
    return (_windowed if windowed else _args)(**changes)


def _refused(exception, *calls):
    """(arguments, exception, message) of (arguments, message without the op's name)."""
    return [(args, exception, f"decode_attention: {message}") for args, message in calls]


BLOCK_SHAPE = "the bytes of a block of this format"
PART = "a part of the window is None; must be all of its tensors or none"

BAD_CALLS = [
    *_refused(
        TypeError,
        (_args(q=None), "q is NoneType; must be a torch.Tensor"),
        (
            _args(q=torch.zeros(2, 1, 4, 64).double()),
            "q has dtype float64; must be one of float32, float16, bfloat16",
        ),
        (_args(k_blocks=None), "k_blocks is NoneType; must be a torch.Tensor"),
        (
            _args(k_blocks=torch.zeros(4, 2, K.nbytes)),
            "k_blocks has dtype float32; must be uint8",
        ),
        (_args(v_blocks=_bytes(V).char()), "v_blocks has dtype int8; must be uint8"),
        (
            _args(page_table=torch.zeros(2, 2, dtype=torch.int64)),
            "page_table has dtype int64; must be int32",
        ),
        (_args(seq_lens=[40, 7]), "seq_lens is list; must be a torch.Tensor"),
        (_args(seq_lens=torch.tensor([40, 7])), "seq_lens has dtype int64; must be int32"),
        (
            _windowed(dense_k=_bytes(DENSE).char()),
            "the window's k_blocks has dtype int8; must be uint8",
        ),
        (
            _windowed(dense_table=torch.zeros(2, 2)),
            "the window's table has dtype float32; must be int32",
        ),
    ),
    *_refused(
        ValueError,
        # queries
        (
            _args(q=torch.zeros(2, 4, 64)),
            "q has 3 dimensions; must have 4: sequences, q_len, heads, head_dim",
        ),
        (_args(q=torch.zeros(2, 0, 4, 64)), "q_len is 0; must be 1 to 8"),
        (_args(q=torch.zeros(2, 9, 4, 64)), "q_len is 9; must be 1 to 8"),
        (
            _args(q=torch.zeros(2, 1, 5, 64)),
            "q has 5 heads and the cache 2; must be 1 to 16 times as many",
        ),
        (
            _args(q=torch.zeros(2, 1, 34, 64)),
            "q has 34 heads and the cache 2; must be 1 to 16 times as many",
        ),
        (
            _args(q=torch.zeros(2, 1, 0, 64)),
            "q has 0 heads and the cache 2; must be 1 to 16 times as many",
        ),
        (
            _args(k_blocks=_bytes(K, heads=0), v_blocks=_bytes(V, heads=0)),
            "q has 4 heads and the cache 0; must be 1 to 16 times as many",
        ),
        (
            _args(q=torch.zeros(2, 1, 4, 60)),
            "head_dim is 60; must be a multiple of 8 from 8 to 256",
        ),
        # formats
        (_args(k_keep=65), "keep is 65; must be 1 to 64, the head_dim"),
        (_args(v_keep=0), "keep is 0; must be 1 to 64, the head_dim"),
        (
            _args(k_values="int5"),
            "values is 'int5'; must be one of fp32, fp16, bf16, fp8_e4m3, int8, int4, int3, int2",
        ),
        (
            _args(k_scales="token"),
            "scales is 'token'; must be 'row' or 'channel' for sparse int8",
        ),
        (_args(v_scales="row"), "scales is 'row'; must be 'none' for sparse fp16"),
        (
            _args(k_keep=None),
            f"k_blocks has shape [4, 2, {K.nbytes}]; must be [blocks, heads, 2112], {BLOCK_SHAPE}",
        ),
        (
            _args(v_values="int4", v_scales="row"),
            f"v_blocks has shape [4, 2, {V.nbytes}]; must be [blocks, heads, 960], {BLOCK_SHAPE}",
        ),
        (
            _args(q=torch.zeros(2, 1, 4, 128)),
            f"k_blocks has shape [4, 2, {K.nbytes}]; must be [blocks, heads, 1344], {BLOCK_SHAPE}",
        ),
        (
            _args(k_blocks=_bytes(K)[0]),
            f"k_blocks has shape [2, {K.nbytes}]; "
            f"must be [blocks, heads, {K.nbytes}], {BLOCK_SHAPE}",
        ),
        (
            _args(v_blocks=_bytes(V, heads=4)),
            "v_blocks has 4 heads; must be 2, those of k_blocks",
        ),
        # tables and lengths
        (
            _args(page_table=ints([3, 1], [2, 0], [1, 1])),
            "page_table has shape [3, 2]; must be [2, max_pages], a line for each sequence of q",
        ),
        (
            _args(page_table=ints(3, 1)),
            "page_table has shape [2]; must be [2, max_pages], a line for each sequence of q",
        ),
        (
            _args(seq_lens=ints(40, 7, 7)),
            "seq_lens has shape [3]; must be [2], one for each sequence of q",
        ),
        # devices
        (
            _args(k_blocks=_bytes(K).to("meta")),
            "k_blocks is on meta; must be on cpu",
        ),
        (_args(seq_lens=ints(40, 7).to("meta")), "seq_lens is on meta; must be on cpu"),
        # numbers
        (_args(page_size=48), "page_size is 48; must be a positive multiple of 32"),
        (_args(page_size=0), "page_size is 0; must be a positive multiple of 32"),
        (_args(page_size=-32), "page_size is -32; must be a positive multiple of 32"),
        (_windowed(window=31), "window is 31; must be 0 or a multiple of 32"),
        (_windowed(window=-32), "window is -32; must be 0 or a multiple of 32"),
        (_windowed(sink=-32), "sink is -32; must be 0 or a multiple of 32"),
        (_windowed(sink=8), "sink is 8; must be 0 or a multiple of 32"),
        (_args(scale=float("nan")), "scale is nan; must be finite"),
        (_args(scale=float("inf")), "scale is inf; must be finite"),
        (_args(softcap=-1.0), "softcap is -1.0; must be positive, or 0 for none"),
        (_args(softcap=float("nan")), "softcap is nan; must be positive, or 0 for none"),
        (_args(softcap=float("inf")), "softcap is inf; must be positive, or 0 for none"),
        (_args(sliding=-1), "sliding is -1; must be at least 1 token, or 0 for none"),
        # the window
        (_windowed(dense_k=None), PART),
        (_windowed(dense_v=None), PART),
        (_windowed(dense_table=None), PART),
        (
            _args(dense_values="int8"),
            "the window's values is 'int8'; must be one of fp32, fp16, bf16",
        ),
        (
            _windowed(dense_values="fp32"),
            f"the window's k_blocks has shape [4, 2, {DENSE.nbytes}]; "
            f"must be [blocks, heads, {2 * DENSE.nbytes}], {BLOCK_SHAPE}",
        ),
        (
            _windowed(dense_v=_bytes(DENSE, heads=4)),
            "the window's v_blocks has 4 heads; must be 2, those of k_blocks",
        ),
        (
            _windowed(dense_table=ints([3, 1])),
            "the window's table has shape [1, 2]; "
            "must be [2, max_pages], a line for each sequence of q",
        ),
    ),
]

CAPACITY = "must be 0 to 64, the tokens of the table's 2 pages of 32"
UNALIGNED = torch.zeros(4 * 2 * K.nbytes + 8, dtype=torch.uint8)[8:].view(4, 2, -1)

BAD_VALUES = _refused(  # and strides, which do not survive a move to a GPU
    ValueError,
    (
        _args(k_blocks=torch.zeros(4, 2, K.nbytes + 8, dtype=torch.uint8)[..., : K.nbytes]),
        f"k_blocks has strides [{2 * (K.nbytes + 8)}, {K.nbytes + 8}, 1]; "
        "must be multiples of 16, and 1 in the last dimension",
    ),
    (_args(k_blocks=UNALIGNED), "blocks must start at a multiple of 16 bytes"),
    (_args(seq_lens=ints(40, 65)), f"a length is 65; {CAPACITY}"),
    (_args(seq_lens=ints(-1, 7)), f"a length is -1; {CAPACITY}"),
    (_args(seq_lens=ints(2**31 - 1, 7)), f"a length is 2147483647; {CAPACITY}"),
    (
        _windowed(dense_table=ints([3], [2])),
        "a length is 40; must be 0 to 32, the tokens of the table's 1 pages of 32",
    ),
    (_args(page_table=ints([3, 4], [2, 0])), "a page of page_table is 4; must be 0 to 3"),
    (_args(page_table=ints([3, 1], [-1, 0])), "a page of page_table is -1; must be 0 to 3"),
    (
        _args(v_blocks=_bytes(V, blocks=3)),
        "a page of page_table is 3; must be 0 to 2",
    ),
    (
        _args(k_blocks=_bytes(K, blocks=0)),
        "a page of page_table is 3; must be none, as there are no blocks",
    ),
    (  # page 1 of 64 tokens would be blocks 2 and 3, of which there is one
        _args(page_table=ints([1], [0]), page_size=64, k_blocks=_bytes(K, blocks=3)),
        "a page of page_table is 1; must be 0 to 0",
    ),
    (
        _windowed(dense_table=ints([3, 9], [2, 0])),
        "a page of the window's table is 9; must be 0 to 3",
    ),
    (
        _windowed(page_table=ints([9, 1], [2, 0])),
        "a page of page_table is 9; must be 0 to 3",
    ),
    (
        _windowed(dense_table=ints([-7, 1], [2, 0]), sink=32),
        "a page of the window's table is -7; must be 0 to 3",
    ),
)
