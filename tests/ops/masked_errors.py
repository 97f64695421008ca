"""Calls of masked_attention and masked_attention_rows that every backend must refuse."""

from typing import Any

import torch

from gossamer.ops import OPS

NAMES = (
    *("q", "k", "v", "offsets", "tiles", "bits", "order", "work", "bias"),
    *("scale", "softcap", "with_lse"),
)
ROW_NAMES = ("q", "k", "v", "row_offsets", "keys", "bias", "batch", "heads", "scale", "softcap")


def ints(*values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def patterns(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def arguments(**changes: Any) -> tuple[Any, ...]:
    """A causal mask over 100 tokens in tiles of 64 by 64, two batches, four heads on two."""
    args = dict(zip(NAMES, OPS["masked_attention"].example(torch.zeros), strict=True))
    args |= {"q": torch.zeros(2, 4, 100, 64)} | {x: torch.zeros(2, 2, 100, 64) for x in "kv"}
    assert set(changes) <= set(args)
    return tuple((args | changes).values())


def row_arguments(**changes: Any) -> tuple[Any, ...]:
    args = dict(zip(ROW_NAMES, OPS["masked_attention_rows"].example(torch.zeros), strict=True))
    args |= {"q": torch.zeros(2, 4, 12, 64)} | {x: torch.zeros(2, 2, 12, 64) for x in "kv"}
    assert set(changes) <= set(args)
    return tuple((args | changes).values())


def _refused(make: Any, op: str, error: type[Exception], cases: list[tuple[dict, str]]) -> list:
    return [(make(**changes), error, f"{op}: {message}") for changes, message in cases]


def _meta(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, device="meta")


def _common(kv_len: int) -> tuple[list[tuple[dict, str]], list[tuple[dict, str]]]:
    """What is wrong with q, k, v and the numbers, as TypeError and as ValueError."""
    n = kv_len
    zeros = torch.zeros
    types = [
        ({"q": [1.0]}, "q is list; must be a torch.Tensor"),
        ({"k": None}, "k is NoneType; must be a torch.Tensor"),
        (
            {"q": zeros(2, 4, n, 64).double()},
            "q has dtype float64; must be one of float32, float16, bfloat16",
        ),
        ({"k": zeros(2, 2, n, 64).half()}, "k has dtype float16; must be float32, the dtype of q"),
        (
            {"v": zeros(2, 2, n, 64).bfloat16()},
            "v has dtype bfloat16; must be float32, the dtype of q",
        ),
        (
            {"bias": zeros(n, n).int()},
            "bias has dtype int32; must be one of float32, float16, bfloat16",
        ),
    ]
    values = [
        ({"v": _meta(2, 2, n, 64)}, "v is on meta; must be on cpu, the device of q"),
        ({"bias": _meta(n, n)}, "bias is on meta; must be on cpu, the device of q"),
        (
            {"q": zeros(4, n, 64)},
            "q has 3 dimensions; must have 4: batch, heads, q_len, head_dim",
        ),
        *(
            (
                {name: zeros(2, 4 if name == "q" else 2, n, d) for name in ("q", "k", "v")},
                f"head_dim is {d}; must be a multiple of 8, 32 to 256",
            )
            for d in (24, 68, 264)
        ),
        *(
            (
                {"k": zeros(shape)},
                f"k has shape {list(shape)}; "
                "must be [2, kv_heads, kv_len, 64], batch and head_dim as in q",
            )
            for shape in ((2, n, 64), (1, 2, n, 64), (2, 2, n, 32))
        ),
        (
            {"v": zeros(2, 2, n - 1, 64)},
            f"v has shape [2, 2, {n - 1}, 64]; must be [2, 2, {n}, 64], the shape of k",
        ),
        *(
            (
                {"k": zeros(2, h, n, 64), "v": zeros(2, h, n, 64)},
                f"q has 4 heads and k {h}; must be a multiple of those of k",
            )
            for h in (0, 3, 8)
        ),
        *(
            (
                {"bias": zeros(shape)},
                f"bias has shape {list(shape)}; must expand to [2, 4, {n}, {n}], "
                "batch, heads, q_len and kv_len",
            )
            for shape in ((n - 1,), (2, n, n), (1, 1, 1, n, n))
        ),
        ({"scale": float("nan")}, "scale is nan; must be finite"),
        ({"softcap": -1.0}, "softcap is -1.0; must be positive, or 0 for none"),
        ({"softcap": float("inf")}, "softcap is inf; must be positive, or 0 for none"),
    ]
    return types, values


_TYPES, _VALUES = _common(100)
_TILE_TYPES = [
    *_TYPES,
    ({"offsets": ints(0, 1, 3).long()}, "offsets has dtype int64; must be int32"),
    ({"bits": None}, "bits is NoneType; must be a torch.Tensor"),
    ({"work": torch.zeros(2, 8)}, "work has dtype float32; must be int32"),
]
_TILE_VALUES = [
    *_VALUES,
    ({"order": ints([[1, 0]]).to("meta")}, "order is on meta; must be on cpu"),
    *(
        ({"bits": patterns(2, t, 2)}, f"tile_q is {t}; must be one of 16, 32, 64, 128")
        for t in (8, 48, 256)
    ),
    *(
        ({"bits": patterns(2, 64, words)}, f"tile_k is {32 * words}; must be one of 32, 64, 128")
        for words in (0, 3, 8)
    ),
    *(
        (
            {"bits": patterns(*shape)},
            f"bits has shape {list(shape)}; "
            "must be [patterns, tile_q, tile_k / 32], at least 1 pattern",
        )
        for shape in ((0, 64, 2), (64, 2))
    ),
    *(
        (
            {"order": order},
            f"order has shape {list(order.shape)}; must be [batch, heads, 2], the rows of tiles",
        )
        for order in (ints([[0]]), ints(1, 0), ints([[0, 1, 2]]))
    ),
    (
        {"bits": patterns(2, 32, 2)},
        "order has shape [1, 1, 2]; must be [batch, heads, 4], the rows of tiles",
    ),
    ({"order": ints(*[[[0, 1]]] * 3)}, "batch is 3; must be 1 or 2, the batch of q"),
    ({"order": ints([[0, 1]] * 2)}, "heads is 2; must be 1 or 4, the heads of q"),
    (
        {"offsets": ints(0, 1, 2, 3)},
        "offsets has shape [4]; must be [3], one for each row of tiles and one more",
    ),
    (
        {"order": ints([[1, 0]], [[3, 2]])},
        "offsets has shape [3]; must be [5], one for each row of tiles and one more",
    ),
    *(
        ({"tiles": tiles}, f"tiles has shape {list(tiles.shape)}; must be [2, tiles]")
        for tiles in (ints(0, 0, 1), ints([0, 0, 1]), ints([0], [0], [1]))
    ),
    (
        {"work": ints([0] * 16)},
        "work has shape [1, 16]; must be [items, 16], at least 2 items",
    ),
]
BAD_CALLS = [
    *_refused(arguments, "masked_attention", TypeError, _TILE_TYPES),
    *_refused(arguments, "masked_attention", ValueError, _TILE_VALUES),
]
_STRIDED = torch.zeros(2, 4, 64, 100).transpose(2, 3)
BAD_VALUES = _refused(  # and strides, which do not survive a move to a GPU
    arguments,
    "masked_attention",
    ValueError,
    [
        ({"q": _STRIDED}, "q has strides [25600, 6400, 1, 100]; the last one must be 1"),
        (
            {"tiles": ints([0, 0], [0, -1], [1, 1]).T},
            "tiles has strides [1, 2]; must be contiguous",
        ),
        *(
            (
                {"offsets": ints(*n)},
                f"offsets are from {n[0]} to {n[-1]}; must begin with 0, "
                "never fall and end with at most 3, the number of tiles",
            )
            for n in ((1, 1, 3), (0, 4, 3), (0, 1, 4))
        ),
        ({"tiles": ints([0, 2, 1], [0, -1, 1])}, "a column is 2; must be 0 to 1"),
        ({"tiles": ints([0, -1, 1], [0, -1, 1])}, "a column is -1; must be 0 to 1"),
        ({"tiles": ints([0, 0, 1], [0, -2, 1])}, "a kind is -2; must be -1 to 1"),
        ({"tiles": ints([0, 0, 1], [0, -1, 2])}, "a kind is 2; must be -1 to 1"),
        (
            {"tiles": ints([0, 0, 1], [0, -1, -1])},
            "a tile that reaches beyond the 100 keys is full; must be partial",
        ),
        ({"order": ints([[0, 2]])}, "a row of order is 2; must be 0 to 1"),
        ({"order": ints([[1, 1]])}, "order names a row twice; must name every row of tiles once"),
    ],
)

_TYPES, _VALUES = _common(12)
_LISTS = OPS["masked_attention_rows"].example(torch.zeros)[3:5]


def _changed(which: int, at: int, value: int) -> torch.Tensor:
    changed = _LISTS[which].clone()
    changed[at] = value
    return changed


BAD_ROW_CALLS = [
    *_refused(
        row_arguments,
        "masked_attention_rows",
        TypeError,
        [*_TYPES, ({"keys": _LISTS[1].long()}, "keys has dtype int64; must be int32")],
    ),
    *_refused(
        row_arguments,
        "masked_attention_rows",
        ValueError,
        [
            *_VALUES,
            ({"batch": 3}, "batch is 3; must be 1 or 2, the batch of q"),
            ({"heads": 2}, "heads is 2; must be 1 or 4, the heads of q"),
            ({"keys": _LISTS[1].to("meta")}, "keys is on meta; must be on cpu"),
            (
                {"row_offsets": ints(0, 0)},
                "row_offsets has shape [2]; must be [13], one for each query and one more",
            ),
            ({"keys": _LISTS[1][None]}, "keys has 2 dimensions; must have 1"),
        ],
    ),
]
_COUNT = _LISTS[1].numel()
BAD_ROW_VALUES = _refused(
    row_arguments,
    "masked_attention_rows",
    ValueError,
    [
        *(
            (
                {"row_offsets": _changed(0, at, value)},
                f"row_offsets are from {first} to {last}; "
                f"must begin with 0, never fall and end with at most {_COUNT}, the number of keys",
            )
            for at, value, first, last in (
                (0, -1, -1, _COUNT),
                (7, 0, 0, _COUNT),
                (12, _COUNT + 1, 0, _COUNT + 1),
            )
        ),
        ({"keys": _changed(1, 3, 12)}, "a key is 12; must be 0 to 11"),
        ({"keys": _changed(1, 3, -1)}, "a key is -1; must be 0 to 11"),
        (
            {"keys": _changed(1, 1, 0)},
            "the keys of a query do not ascend; must be a list without repeats",
        ),
    ],
)
