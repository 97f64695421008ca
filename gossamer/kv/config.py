"""A KV cache in one line: layouts, bases and policies of K and V, and the dense window.

A spec is a list of `key=value`, separated by commas; nothing in it needs quoting in a shell:

    dense                                               float16, as usual
    dense:int8                                          all entries in 8 bits, a scale per token
    sparse:k=64,v=40                                    keep 64 entries of K and 40 of V per token
    sparse:k=0.5,v=0.7,values=int8,basis=pca,window=64  prune 50% and 70%, in calibrated bases
    k=dense:int4@channel,v=sparse:40:int4,v_basis=pca   K and V named separately
    coded:25%                                           codes, bits as a calibration picks them
    k=coded:8x8+4x40+2x16,v=coded:4x32+2x32@row         bits x channels; V with a scale per token

The short forms begin with `dense[:type[@scales]]`, `coded:bits[@scales]` or `sparse:`; the long
form gives k= and v= a layout `dense[:type[@scales]]`, `sparse:keep[:type[@scales]]` or
`coded:bits[@scales]` each. Then, in any order: basis, k_basis and v_basis (none, pca), k_policy and
v_policy, window and sink (multiples of 32; a cache with coded rows has sink=32 unless it says
otherwise), prefill (blocks, dense); after `sparse:` also values and scales.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from gossamer.kv.layouts import (
    PLAIN,
    Coded,
    Dense,
    Layout,
    Side,
    Sparse,
    parse_keep,
    parse_layout,
    parse_type,
)
from gossamer.kv.policies import POLICIES
from gossamer.kv.shape import KVShape
from gossamer.ops.checks import one_of
from gossamer.ops.kv_block import BLOCK_TOKENS

if TYPE_CHECKING:
    from gossamer.kv.calibration import Calibration

DENSE = Side(Dense())
DEFAULT_WINDOW = 32
# The first token is far from all others: codes whose steps fit those clip it (SmolLM2, 4 bits:
# +0.045 NLL without a dense first block).
CODED_SINK = 32
BY_LAYOUT = -1
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
    sink: by default 32 where a side is coded, else 0. prefill="dense" is for an engine: prompts
    attend to dense keys throughout, as in Mustafar.
    """

    k: Side = DENSE
    v: Side = DENSE
    window: int = DEFAULT_WINDOW
    sink: int = BY_LAYOUT
    prefill: str = "blocks"

    def __post_init__(self) -> None:
        if self.sink == BY_LAYOUT:
            object.__setattr__(self, "sink", self._default_sink)
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
        try:
            sides, pairs = _layouts(spec.strip(), dense, sparse)
            k, v = (
                Side(
                    layout,
                    pairs.get(f"{name}_basis", pairs.get("basis", "none")),
                    pairs.get(f"{name}_policy", "magnitude"),
                )
                for name, layout in zip("kv", sides, strict=True)
            )
            window = _whole_number(pairs, "window", DEFAULT_WINDOW)
            sink = _whole_number(pairs, "sink", BY_LAYOUT)
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
        if not isinstance(k, Sparse) and k == v:
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
        parts += [f"sink={self.sink}"] if self.sink != self._default_sink else []
        parts += [f"prefill={self.prefill}"] if self.prefill != "blocks" else []
        return ",".join(parts)

    @property
    def _sides(self) -> tuple[tuple[str, Side], tuple[str, Side]]:
        return ("k", self.k), ("v", self.v)

    @property
    def _default_sink(self) -> int:
        return CODED_SINK if any(isinstance(s.layout, Coded) for _, s in self._sides) else 0

    @property
    def calibrated(self) -> bool:
        """Whether it needs a Calibration: for a basis, for codes, or for a policy's weights."""
        return any(
            isinstance(side.layout, Coded)
            or side.basis != "none"
            or POLICIES[side.policy].statistic is not None
            for _, side in self._sides
        )

    @property
    def resolved(self) -> bool:
        """Whether all bits are known, so that it can say what it takes in bytes."""
        return all(s.layout.resolved for _, s in self._sides if isinstance(s.layout, Coded))

    def resolve(self, calibration: "Calibration | None") -> "KVConfig":
        """The same with bits in the place of percentages, as the calibration picks them.

        Raises ValueError where there is something to pick and no calibration, or one that does not
        have what it takes.
        """
        if self.resolved:
            return self
        if calibration is None:
            raise ValueError(f"kv is {self}, which needs a calibration to pick its bits")
        k, v = calibration.pick_bits(self.k.layout, self.v.layout)
        return replace(self, k=replace(self.k, layout=k), v=replace(self.v, layout=v))

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

    def sequence_bytes(self, shape: KVShape, length: int) -> int:
        """Of one sequence: stored blocks, and dense 16-bit ones for itself, window and sink.

        The accounting of tokens_that_fit, so windows and sinks are not free.
        """
        blocks = -(-length // BLOCK_TOKENS)
        dense = min(blocks, 1 + (self.window + self.sink) // BLOCK_TOKENS)
        plain = KVConfig().block_bytes(shape)
        return dense * plain + (blocks - dense) * self.block_bytes(shape)

    def share_at(self, shape: KVShape, length: int) -> float:
        """Those bytes relative to a dense float16 cache."""
        return self.sequence_bytes(shape, length) / KVConfig().sequence_bytes(shape, length)

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


def _layouts(spec: str, dense: str, sparse: str) -> tuple[list[Layout], dict[str, str]]:
    """The layouts of K and V, and all keys of the spec."""
    head, _, rest = spec.partition(",")
    if head == "dense" or head.startswith(("dense:", "coded:")):
        pairs = _pairs(rest, [k for k in COMMON_KEYS if k not in ("k", "v")])
        return [parse_layout(head, dense, sparse)] * 2, pairs
    if not head.startswith("sparse:"):
        pairs = _pairs(spec, COMMON_KEYS)
        return [parse_layout(_required(pairs, s), dense, sparse) for s in "kv"], pairs
    pairs = _pairs(spec.removeprefix("sparse:"), [*COMMON_KEYS, "values", "scales"])
    values, scales = parse_type(pairs.get("values", sparse))
    if scales is not None and "scales" in pairs:
        raise ValueError("scales are there twice, after @ and as scales=")
    scales = pairs.get("scales", scales)
    return [Sparse(parse_keep(_required(pairs, s)), values, scales) for s in "kv"], pairs


def _pairs(text: str, valid: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in text.split(",") if text else ():
        key, equals, value = item.partition("=")
        if not equals or not value:
            raise ValueError(
                f"{item!r} is not key=value; specs begin with dense, coded:25%, sparse:k=..,v=.. "
                "or k=..,v=.."
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
    if key not in pairs:
        return default
    text = pairs[key]
    if not re.fullmatch("0|[1-9][0-9]*", text):
        raise ValueError(f"{key} is {text!r}; must be a multiple of {BLOCK_TOKENS} from 0")
    return int(text)
