"""LoRA in a forward pass: adapters side by side in memory, and which token has which of them.

A GEMM of the decoder (qkv, o, gate_up, down) has a slot for each adapter: the a of its modules
below each other, their b on a block diagonal, so that fused projections stay one GEMM pair.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise, starmap
from typing import Protocol

import torch
from torch import Tensor

from gossamer.kv.bases import Basis
from gossamer.kv.folding import turn_output, turn_values
from gossamer.models.adapter import Adapter
from gossamer.models.config import ModelConfig
from gossamer.models.layout import layer_name
from gossamer.models.shard import Shard

NO_ADAPTER = -1  # the slot of tokens of the model itself
QKV, OUT, GATE_UP, DOWN = range(4)  # GEMMs of a layer


class LoRA(Protocol):
    """The adapters of a step's tokens."""

    def adapts(self, gemm: int) -> bool:
        """Whether any of them changes this GEMM, in some layer."""
        ...

    def add(self, layer: int, gemm: int, x: Tensor, y: Tensor) -> None:
        """What the adapters add to y [T, out], the GEMM of x [T, in]; in place."""
        ...


@dataclass(frozen=True, eq=False)
class Slots:
    """Of one GEMM. a: [slots, R, in]; b: [out, slots, R], R the ranks of all its parts together.

    Zero where an adapter has a lower rank or leaves a module alone.
    """

    a: Tensor
    b: Tensor


class LoRABank:
    """Memory for adapters of a shard of a model. It never moves, so CUDA graphs can read it.

    slots: adapters at a time. rank: of each module at most. v_basis: as load_decoder folds it.
    """

    def __init__(
        self,
        config: ModelConfig,
        shard: Shard,
        slots: int,
        rank: int,
        dtype: torch.dtype,
        device: torch.device,
        v_basis: Basis | None = None,
    ) -> None:
        self.slots, self._gemms, self._v_basis = slots, _gemms(config, shard), v_basis
        make = partial(torch.zeros, dtype=dtype, device=device)
        self.layers = [
            [
                Slots(
                    make(slots, len(gemm.parts) * rank, _size(gemm.columns)),
                    make(gemm.parts[-1].rows.stop, slots, len(gemm.parts) * rank),
                )
                for gemm in self._gemms
            ]
            for _ in range(config.layers)
        ]
        self._ranks = [[0] * len(self._gemms) for _ in range(slots)]  # the most of all layers

    @torch.inference_mode()
    def set(self, slot: int, adapter: Adapter) -> None:
        """Put an adapter into a slot, in place of the one that was there."""
        self._ranks[slot] = [0] * len(self._gemms)
        for layer, memories in enumerate(self.layers):
            for i, (gemm, memory) in enumerate(zip(self._gemms, memories, strict=True)):
                memory.a[slot].zero_()
                memory.b[:, slot].zero_()
                end = 0
                for part in gemm.parts:
                    pair = adapter.pairs.get(layer_name(layer, part.name))
                    if pair is not None:
                        a, b = self._turned(layer, part, pair.a[:, gemm.columns], pair.b[part.own])
                        start, end = end, end + len(a)
                        memory.a[slot, start:end] = a.to(memory.a)
                        memory.b[part.rows, slot, start:end] = b.to(memory.b)
                self._ranks[slot][i] = max(self._ranks[slot][i], end)

    def rank_of(self, slot: int, gemm: int) -> int:
        """How many of the R are in use, from the first on."""
        return self._ranks[slot][gemm]

    def segments(self, slots: Sequence[tuple[int, Tensor | None]]) -> "Segments":
        """For tokens of which the host knows the adapters: see Segments."""
        return Segments(self, tuple(slots))

    def masked(self, slots: Tensor, *, single: bool) -> "Masked":
        """For tokens [T] with these slots, on the device. single: all have the same, or none."""
        if not single or self.slots == 1:
            active = torch.arange(self.slots, device=slots.device)
            return Masked(self, (slots[:, None] == active), None)
        active = slots.amax().clamp(min=0).reshape(1)
        return Masked(self, (slots[:, None] == active), active)

    def _turned(self, layer: int, part: "_Part", a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """In V's basis, where its weights are: a and b are those of the shard."""
        if self._v_basis is not None and part.name == "self_attn.v_proj":
            b = turn_values(b, self._v_basis, layer)
        if self._v_basis is not None and part.name == "self_attn.o_proj":
            a = turn_output(a, self._v_basis, layer)
        return a, b


@dataclass(frozen=True, eq=False)
class Segments:
    """See LoRA. parts: slots, and which tokens [n] have them; None for all tokens.

    One GEMM pair for each adapter, so a batch of one adapter pays for it alone.
    """

    bank: LoRABank
    parts: tuple[tuple[int, Tensor | None], ...]

    def adapts(self, gemm: int) -> bool:
        return any(self.bank.rank_of(slot, gemm) for slot, _ in self.parts)

    def add(self, layer: int, gemm: int, x: Tensor, y: Tensor) -> None:
        memory = self.bank.layers[layer][gemm]
        for slot, tokens in self.parts:
            rank = self.bank.rank_of(slot, gemm)
            if not rank:
                continue
            a, b = memory.a[slot, :rank], memory.b[:, slot, :rank]
            if tokens is None:
                y.addmm_(x @ a.t(), b.t())
            else:
                y.index_add_(0, tokens, x[tokens] @ a.t() @ b.t())


@dataclass(frozen=True, eq=False)
class Masked:
    """See LoRA; the same kernels whatever the adapters are, as CUDA graphs need it.

    mask: [T, K], which of K slots a token has. active: [1], the slot that is meant where K is 1 of
    several; its matrices are copied next to each other first, 1/slots of the work for all of them.
    One GEMM pair of rank K * R, between which the ranks of other adapters are set to 0.
    """

    bank: LoRABank
    mask: Tensor
    active: Tensor | None

    def adapts(self, gemm: int) -> bool:
        return True

    def add(self, layer: int, gemm: int, x: Tensor, y: Tensor) -> None:
        memory = self.bank.layers[layer][gemm]
        a, b = memory.a, memory.b
        if self.active is not None:
            a, b = a.index_select(0, self.active), b.index_select(1, self.active)
        low = (x @ a.flatten(0, 1).t()).view(*self.mask.shape, -1)
        low = torch.where(self.mask[:, :, None], low, 0)
        y.addmm_(low.flatten(1), b.flatten(1).t())


@dataclass(frozen=True)
class _Part:
    """A module in a GEMM. rows: its outputs there. own: which of the module's outputs they are."""

    name: str
    rows: slice
    own: slice


@dataclass(frozen=True)
class _Gemm:
    """columns: which of its modules' inputs the shard has."""

    parts: tuple[_Part, ...]
    columns: slice

    @classmethod
    def of(cls, own: Mapping[str, slice], columns: slice) -> "_Gemm":
        ends = accumulate(map(_size, own.values()), initial=0)
        rows = starmap(slice, pairwise(ends))
        each = zip(own.items(), rows, strict=True)
        return cls(tuple(_Part(name, inside, part) for (name, part), inside in each), columns)


def _gemms(config: ModelConfig, shard: Shard) -> list[_Gemm]:
    """By their numbers. A shard has some outputs of qkv and gate_up, some inputs of the others."""
    dims, hidden = config.head_dim, slice(0, config.hidden_size)
    queries, keys = shard.query_heads(config), shard.kv_heads(config)
    q, kv = (slice(heads.start * dims, heads.stop * dims) for heads in (queries, keys))
    inter = slice(shard.intermediate(config).start, shard.intermediate(config).stop)
    return [
        _Gemm.of({"self_attn.q_proj": q, "self_attn.k_proj": kv, "self_attn.v_proj": kv}, hidden),
        _Gemm.of({"self_attn.o_proj": hidden}, q),
        _Gemm.of({"mlp.gate_proj": inter, "mlp.up_proj": inter}, hidden),
        _Gemm.of({"mlp.down_proj": hidden}, inter),
    ]


def _size(part: slice) -> int:
    return int(part.stop - part.start)
