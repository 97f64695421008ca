"""How long a step of the engine takes: weights, K and V, prompts, what lies between, links."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from gossamer.kv import Dense, KVConfig, KVShape, Side
from gossamer.kv.layouts import PLAIN
from gossamer.kv.rule import CacheRule
from gossamer.models import ModelConfig, Shard
from gossamer.models.layout import layer_shapes
from gossamer.ops.kv_block import BLOCK_TOKENS
from gossamer.planning.gpu import GPU, Curve

GIGA = 1e9
ALL_REDUCES = 2  # of a layer: after attention, after the MLP
# Of an all-reduce besides its bytes, as NCCL takes it over NVLink; no run of ours measured it.
LINK_SECONDS = 15e-6


@dataclass(frozen=True)
class Work:
    """What a step computes; numbers may be means, so they need not be whole.

    decoding: sequences that get a token; context: tokens that these see, all together. prompt:
    tokens of prompts; pairs: of a query among these and a key it sees. ending: prompts that are
    complete with it, whose first token is sampled.
    """

    decoding: float
    context: float
    prompt: float = 0.0
    pairs: float = 0.0
    ending: float = 0.0


@dataclass(frozen=True)
class StepTime:
    """Seconds by what takes them: the GPU's, and the host's, which `overlaps` with those or not."""

    weights: float
    kv: float
    prompts: float
    between: float
    links: float
    host: float
    overlaps: bool

    @property
    def gpu(self) -> float:
        return self.weights + self.kv + self.prompts + self.between + self.links

    @property
    def total(self) -> float:
        return max(self.gpu, self.host) if self.overlaps else self.gpu + self.host

    @property
    def parts(self) -> dict[str, float]:
        """What adds up to the total: of the host, what the GPU waits for."""
        found = {name: getattr(self, name) for name in ("weights", "kv", "prompts", "between")}
        return found | {"links": self.links, "host": self.total - self.gpu}


@dataclass(frozen=True)
class StepModel:
    """Steps of a model with a cache on `ranks` GPUs. kv: with all bits known.

    dtype: of weights and of a dense cache, 16 bits. Raises ValueError for a model that cannot be
    cut into so many parts, and for a cache whose kernel nobody measured.
    """

    gpu: GPU
    model: ModelConfig
    kv: KVConfig
    dtype: torch.dtype
    ranks: int = 1

    def __post_init__(self) -> None:
        if self.dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(f"dtype is {self.dtype}; must be float16 or bfloat16")
        Shard(0, self.ranks).check(self.model)
        _ = self._decode  # ValueError for what nobody measured

    def seconds(self, work: Work) -> float:
        return self.time(work).total

    def time(self, work: Work) -> StepTime:
        layers, engine = self.model.layers, self.gpu.engine
        rows = work.decoding + work.prompt
        weights = layers * self._gemm(self.rank_weights, rows)
        weights += self._gemm(self.head_weights, work.decoding + work.ending)
        flops = 4 * self.shape.query_heads * self.shape.head_dim * work.pairs
        return StepTime(
            weights=weights,
            kv=layers * self._attention(work),
            prompts=layers * flops / engine.prompt_flops,
            between=layers * engine.layer_seconds,
            links=layers * self._all_reduces(rows),
            host=engine.token_seconds * work.decoding,
            overlaps=self.ranks == 1,
        )

    # ---- what there is -------------------------------------------------------------------

    @cached_property
    def shape(self) -> KVShape:
        """Of the attention of one rank."""
        return Shard(0, self.ranks).kv_shape(self.model)

    @cached_property
    def rule(self) -> CacheRule:
        return CacheRule.of(self.kv, self.dtype)

    @cached_property
    def measured(self) -> bool:
        """Whether decode attention over this very layout was."""
        return self._decode[1]

    @cached_property
    def layer_weights(self) -> int:
        """Of all ranks."""
        return sum(math.prod(shape) for shape in layer_shapes(self.model).values())

    @cached_property
    def rank_weights(self) -> float:
        """Of a layer on one rank, which has at least one KV head however many ranks there are."""
        shared = self.shape.kv_heads / self.model.kv_heads
        return sum(
            math.prod(shape) * (shared if "k_proj" in name or "v_proj" in name else 1 / self.ranks)
            for name, shape in layer_shapes(self.model).items()
        )

    @property
    def head_weights(self) -> int:
        """Whole on every rank."""
        return self.model.vocab_size * self.model.hidden_size

    @cached_property
    def weight_bytes(self) -> int:
        """In the memory of one rank."""
        copies = 1 if self.model.tied else 2  # embedding and head
        layers = round(self.model.layers * self.rank_weights)
        return self.dtype.itemsize * (layers + copies * self.head_weights)

    @property
    def prompt_token_flops(self) -> float:
        """Of a token's GEMMs, without head and attention."""
        return 2.0 * self.model.layers * self.layer_weights

    # ---- what it takes -------------------------------------------------------------------

    def _gemm(self, weights: float, rows: float) -> float:
        """As measured by itself; or at the rate of whole prompts, if that is slower: a GPU is at
        its power limit then. Nothing is read for no rows."""
        if rows <= 0:
            return 0.0
        sustained = 2 * rows / self.gpu.engine.prompt_flops
        return weights * max(self.gpu.gemm.at(rows) / GIGA, sustained)

    def _attention(self, work: Work) -> float:
        """Of decoding, one layer: stored rows by the kernel's curve, window and sink by bytes."""
        if work.decoding <= 0:
            return 0.0
        rule, (curve, _), (stored, dense) = self.rule, self._decode, self._token_bytes
        if rule.plain:
            return curve.at(work.context * stored)
        # Of its own block a query sees half, on average.
        near = (rule.window + rule.sink) * BLOCK_TOKENS + BLOCK_TOKENS / 2
        near = min(work.context, near * work.decoding)
        items = work.decoding * self.shape.kv_heads * self.gpu.engine.item_seconds
        return curve.at((work.context - near) * stored) + near * dense / self.gpu.copy + items

    @cached_property
    def _decode(self) -> tuple[Curve, bool]:
        return self.gpu.decode_curve(self.kv, self.model.head_dim)

    @cached_property
    def _token_bytes(self) -> tuple[float, float]:
        """Of a token in a layer of one rank, as stored and dense."""
        side = Side(Dense(PLAIN[self.dtype]))
        stored, dense = (kv.bytes_per_token(self.shape) for kv in (self.kv, KVConfig(side, side)))
        return stored / self.model.layers, dense / self.model.layers

    def _all_reduces(self, rows: float) -> float:
        """A ring: every rank sends (n - 1) / n of the bytes twice."""
        if self.ranks == 1:
            return 0.0
        size = rows * self.model.hidden_size * self.dtype.itemsize
        sent = 2 * (self.ranks - 1) / self.ranks * size
        return ALL_REDUCES * (LINK_SECONDS + sent / self.gpu.sheet.link)
