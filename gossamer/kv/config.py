"""A KV cache in one line: layouts, bases and policies of K and V, and the dense window.

A spec is a list of `key=value`, separated by commas; nothing in it needs quoting in a shell:

    dense                                               float16, as usual
    dense:int8                                          all entries in 8 bits, a scale per token
    sparse:k=64,v=40                                    keep 64 entries of K and 40 of V per token
    sparse:k=0.5,v=0.7,values=int8,basis=pca,window=64  prune 50% and 70%, in calibrated bases
    k=dense:int4@channel,v=sparse:40:int4,v_basis=pca   K and V named separately

The short forms begin with `dense[:type[@scales]]` or `sparse:`; the long form gives k= and v= a
layout `dense[:type[@scales]]` or `sparse:keep[:type[@scales]]` each. Then, in any order: basis,
k_basis and v_basis (none, pca), k_policy and v_policy, window and sink (multiples of 32), prefill
(blocks, dense); after `sparse:` also values and scales.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from gossamer.kv.layouts import PLAIN, Dense, Side, Sparse, parse_keep, parse_layout, parse_type
from gossamer.kv.policies import POLICIES
from gossamer.kv.shape import KVShape
from gossamer.ops.checks import one_of
from gossamer.ops.kv_block import BLOCK_TOKENS

DENSE = Side(Dense())
DEFAULT_WINDOW = 32
MAX_TOKENS = 1 << 40  # so that positions stay integers of 64 bits
PREFILL = ("blocks", "dense")
COMMON_KEYS = (
    "k", "v", "basis", "k_basis", "v_basis", "k_policy", "v_policy", "window", "sink", "prefill",
)  # fmt: skip


@dataclass(frozen=True)
class KVConfig:
    """The whole cache. Unknown keys and values are errors; `parse` and `str` are inverse.

    What a query sees depends on positions alone: its own block of 32 tokens, the window / 32 blocks
    before it and the first sink / 32 blocks are dense, everything else is as stored.
    prefill="dense" is for an engine: prompts attend to dense keys throughout, as in Mustafar.
    """

    k: Side = DENSE
    v: Side = DENSE
    window: int = DEFAULT_WINDOW
    sink: int = 0
    prefill: str = "blocks"

    def __post_init__(self) -> None:
        for name, value in (("window", self.window), ("sink", self.sink)):
            if type(value) is not int or not 0 <= value <= MAX_TOKENS or value % BLOCK_TOKENS:
                raise ValueError(
                    f"{name} is {value}; must be a multiple of {BLOCK_TOKENS} "
                    f"from 0 to {MAX_TOKENS}"
                )
        one_of("prefill", self.prefill, PREFILL)
        for name, side in (("k", self.k), ("v", self.v)):
            if name not in POLICIES[side.policy].sides:
                valid = [p for p, policy in POLICIES.items() if name in policy.sides]
                raise ValueError(
                    f"{name}_policy is {side.policy!r}; must be one of {', '.join(valid)}"
                )

    @classmethod
    def parse(cls, spec: str, *, dense: str = "fp16", sparse: str = "fp16") -> Self:
        """The config that `spec` names. Raises ValueError: what is wrong, and what is valid.

        dense, sparse: the types of layouts that name none.
        """
        head, _, rest = spec.strip().partition(",")
        try:
            if head == "dense" or head.startswith("dense:"):
                sides = [parse_layout(head, dense, sparse)] * 2
                pairs = _pairs(rest, [k for k in COMMON_KEYS if k not in ("k", "v")])
            elif head.startswith("sparse:"):
                pairs = _pairs(
                    spec.strip().removeprefix("sparse:"), [*COMMON_KEYS, "values", "scales"]
                )
                values, scales = parse_type(pairs.get("values", sparse))
                if scales is not None and "scales" in pairs:
                    raise ValueError("scales are there twice, after @ and as scales=")
                scales = pairs.get("scales", scales)
                sides = [Sparse(parse_keep(_required(pairs, s)), values, scales) for s in "kv"]
            else:
                pairs = _pairs(spec.strip(), COMMON_KEYS)
                sides = [parse_layout(_required(pairs, s), dense, sparse) for s in "kv"]
            k, v = (
                Side(
                    layout,
                    pairs.get(f"{name}_basis", pairs.get("basis", "none")),
                    pairs.get(f"{name}_policy", "magnitude"),
                )
                for name, layout in zip("kv", sides, strict=True)
            )
            window = _whole_number(pairs, "window", DEFAULT_WINDOW)
            sink = _whole_number(pairs, "sink", 0)
            return cls(k, v, window, sink, pairs.get("prefill", "blocks"))
        except ValueError as error:
            raise ValueError(f"KV spec {spec!r}: {error}") from None

    @classmethod
    def of(cls, spec: "str | KVConfig", dtype: torch.dtype) -> "KVConfig":
        """A spec as a model of this type means it: layouts that name no type have the model's."""
        if isinstance(spec, KVConfig):
            return spec
        plain = PLAIN[dtype]
        return cls.parse(spec, dense=plain, sparse="bf16" if plain == "bf16" else "fp16")

    def __str__(self) -> str:
        """The shortest spec of this config."""
        k, v = self.k.layout, self.v.layout
        if isinstance(k, Dense) and k == v:
            parts = ["dense" if k == Dense() else str(k)]
        elif isinstance(k, Sparse) and isinstance(v, Sparse) and replace(k, keep=v.keep) == v:
            parts = [f"sparse:k={k.keep}", f"v={v.keep}"]
            words = str(k).split(":")
            parts += [f"values={words[2]}"] if words[2] != "fp16" else []
        else:
            parts = [f"k={k}", f"v={v}"]
        if self.k.basis == self.v.basis:
            parts += [f"basis={self.k.basis}"] if self.k.basis != "none" else []
        else:
            parts += [f"{n}_basis={s.basis}" for n, s in self._sides if s.basis != "none"]
        parts += [f"{n}_policy={s.policy}" for n, s in self._sides if s.policy != "magnitude"]
        parts += [f"window={self.window}"] if self.window != DEFAULT_WINDOW else []
        parts += [f"sink={self.sink}"] if self.sink else []
        parts += [f"prefill={self.prefill}"] if self.prefill != "blocks" else []
        return ",".join(parts)

    @property
    def _sides(self) -> tuple[tuple[str, Side], tuple[str, Side]]:
        return ("k", self.k), ("v", self.v)

    @property
    def calibrated(self) -> bool:
        """Whether it needs a Calibration: for a basis, or for a policy's weights."""
        return any(
            side.basis != "none" or POLICIES[side.policy].statistic is not None
            for _, side in self._sides
        )

    def sees_dense(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether queries at these positions see keys at those dense; the tensors broadcast."""
        block = key // BLOCK_TOKENS
        near = block >= query // BLOCK_TOKENS - self.window // BLOCK_TOKENS
        return near | (block < self.sink // BLOCK_TOKENS)

    # ---- bytes, as stored ---------------------------------------------------------------

    def block_bytes(self, shape: KVShape) -> int:
        """K and V of 32 tokens, all layers and heads. Raises ValueError for an impossible shape."""
        per_head = 0
        for name, side in self._sides:
            try:
                per_head += side.block_bytes(shape.head_dim)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return per_head * shape.kv_heads * shape.layers

    def bytes_per_token(self, shape: KVShape) -> float:
        """Beyond the window. Not always whole: some scales are shared by 32 tokens."""
        return self.block_bytes(shape) / BLOCK_TOKENS

    def bytes_per_page(self, shape: KVShape, page_tokens: int = BLOCK_TOKENS) -> int:
        """Raises ValueError unless page_tokens is a multiple of 32."""
        if page_tokens < BLOCK_TOKENS or page_tokens % BLOCK_TOKENS:
            raise ValueError(
                f"page_tokens is {page_tokens}; must be a multiple of {BLOCK_TOKENS} from there on"
            )
        return self.block_bytes(shape) * (page_tokens // BLOCK_TOKENS)

    def share(self, shape: KVShape) -> float:
        """Bytes beyond the window relative to dense float16."""
        return self.block_bytes(shape) / KVConfig().block_bytes(shape)

    def tokens_that_fit(self, memory: int, shape: KVShape, sequences: int = 1) -> int:
        """How many tokens `sequences` equally long ones can have together in `memory` bytes.

        Each needs its dense float16 blocks (its own, window and sink) besides the stored ones.
        """
        if type(memory) is not int or memory < 0 or type(sequences) is not int or sequences < 1:
            raise ValueError(
                f"memory is {memory} and sequences {sequences}; must be integers >= 0 and >= 1"
            )
        each = memory // sequences
        plain = KVConfig().block_bytes(shape)
        dense_blocks = 1 + (self.window + self.sink) // BLOCK_TOKENS
        stored = self.block_bytes(shape)
        if self.k == self.v == DENSE or each < dense_blocks * plain:
            blocks = each // plain
        else:
            blocks = dense_blocks + (each - dense_blocks * plain) // stored
        return blocks * BLOCK_TOKENS * sequences


def _pairs(text: str, valid: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in text.split(",") if text else ():
        key, equals, value = item.partition("=")
        if not equals or not value:
            raise ValueError(
                f"{item!r} is not key=value; specs begin with dense, sparse:k=..,v=.. or k=..,v=.."
            )
        one_of("key", key, valid)
        if key in found:
            raise ValueError(f"key {key!r} is there twice; must be there once")
        found[key] = value
    return found


def _required(pairs: dict[str, str], key: str) -> str:
    if key not in pairs:
        raise ValueError(f"{key}= is missing; must be given")
    return pairs[key]


def _whole_number(pairs: dict[str, str], key: str, default: int) -> int:
    text = pairs.get(key, str(default))
    if not re.fullmatch("0|[1-9][0-9]*", text):
        raise ValueError(f"{key} is {text!r}; must be a multiple of {BLOCK_TOKENS} from 0")
    return int(text)
