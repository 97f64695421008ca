"""The weights of one shard of a decoder, fused as its GEMMs want them."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from gossamer.models.config import ModelConfig
from gossamer.models.shard import Shard


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """One layer. Hq, Hk and inter are those of the shard.

    attention_norm, mlp_norm: [hidden]. qkv: [(Hq + 2 Hk) * D, hidden]. o: [hidden, Hq * D].
    qk_norm: [Hq + Hk, D], the norm weights of q and k for each head. gate_up: [2 * inter, hidden].
    down: [hidden, inter]. Biases of o and down are added once, so only rank 0 has them.
    """

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None

    @classmethod
    def empty(
        cls, config: ModelConfig, shard: Shard, dtype: torch.dtype, device: torch.device
    ) -> Self:
        """Memory for one layer; the shard must divide the config."""

        def make(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        hidden, dims, first = config.hidden_size, config.head_dim, shard.rank == 0
        queries, keys = len(shard.query_heads(config)), len(shard.kv_heads(config))
        rows, inter = (queries + 2 * keys) * dims, len(shard.intermediate(config))
        return cls(
            attention_norm=make(hidden),
            qkv=make(rows, hidden),
            qkv_bias=make(rows) if config.qkv_bias else None,
            qk_norm=make(queries + keys, dims) if config.qk_norm else None,
            o=make(hidden, queries * dims),
            o_bias=make(hidden) if config.o_bias and first else None,
            mlp_norm=make(hidden),
            gate_up=make(2 * inter, hidden),
            gate_up_bias=make(2 * inter) if config.mlp_bias else None,
            down=make(hidden, inter),
            down_bias=make(hidden) if config.mlp_bias and first else None,
        )


@dataclass(frozen=True, eq=False)
class Weights:
    """All of a shard. embedding, head: [vocab, hidden], one tensor when tied. norm: [hidden].

    Every rank has the whole embedding and head: then no rank has to wait for another one to look
    up a token, and rank 0 alone can compute logits.
    """

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor

    @classmethod
    def empty(
        cls, config: ModelConfig, shard: Shard, dtype: torch.dtype, device: torch.device
    ) -> Self:
        """Memory for a shard of a model; the shard must divide the config."""
        vocab, hidden = config.vocab_size, config.hidden_size
        embedding = torch.empty(vocab, hidden, dtype=dtype, device=device)
        layers = tuple(
            LayerWeights.empty(config, shard, dtype, device) for _ in range(config.layers)
        )
        norm = torch.empty(hidden, dtype=dtype, device=device)
        return cls(
            embedding, layers, norm, embedding if config.tied else torch.empty_like(embedding)
        )
