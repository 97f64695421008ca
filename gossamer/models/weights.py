"""The weights of one shard of a decoder, fused as its GEMMs want them."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from gossamer.models.config import ModelConfig
from gossamer.models.layout import layer_name
from gossamer.models.matrix import Matrix
from gossamer.models.precision import Precision
from gossamer.models.shard import Shard


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """One layer. Hq, Hk and inter are those of the shard.

    attention_norm, mlp_norm: [hidden]. qkv: [(Hq + 2 Hk) * D, hidden]. o: [hidden, Hq * D].
    qk_norm: [Hq + Hk, D], the norm weights of q and k for each head. gate_up: [2 * inter, hidden].
    down: [hidden, inter]. Biases of o and down are added once, so only rank 0 has them.
    Matrices are numbers, or in few bits.
    """

    attention_norm: Tensor
    qkv: Matrix
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    o: Matrix
    o_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Matrix
    gate_up_bias: Tensor | None
    down: Matrix
    down_bias: Tensor | None

    @classmethod
    def empty(
        cls,
        config: ModelConfig,
        shard: Shard,
        dtype: torch.dtype,
        device: torch.device,
        precision: Precision,
        index: int,
        turned: bool,
    ) -> Self:
        """Memory for layer `index`; the shard must divide the config."""

        def make(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        def matrix(columns: int, *rows: int, of: str) -> Matrix:
            owner, _, parts = of.partition(".")
            names = [layer_name(index, f"{owner}.{part}_proj.weight") for part in parts.split("|")]
            kind = precision.layer_matrix(columns, names, turned=turned and owner == "self_attn")
            return make(sum(rows), columns) if kind is None else kind(rows, columns, device)

        hidden, dims, first = config.hidden_size, config.head_dim, shard.rank == 0
        queries, keys = len(shard.query_heads(config)), len(shard.kv_heads(config))
        inter = len(shard.intermediate(config))
        heads = (queries * dims, keys * dims, keys * dims)
        return cls(
            attention_norm=make(hidden),
            qkv=matrix(hidden, *heads, of="self_attn.q|k|v"),
            qkv_bias=make(sum(heads)) if config.qkv_bias else None,
            qk_norm=make(queries + keys, dims) if config.qk_norm else None,
            o=matrix(queries * dims, hidden, of="self_attn.o"),
            o_bias=make(hidden) if config.o_bias and first else None,
            mlp_norm=make(hidden),
            gate_up=matrix(hidden, inter, inter, of="mlp.gate|up"),
            gate_up_bias=make(2 * inter) if config.mlp_bias else None,
            down=matrix(inter, hidden, of="mlp.down"),
            down_bias=make(hidden) if config.mlp_bias and first else None,
        )


@dataclass(frozen=True, eq=False)
class Weights:
    """All of a shard. embedding, head: [vocab, hidden], one tensor when tied. norm: [hidden].

    Every rank has the whole embedding and head: then no rank has to wait for another one to look
    up a token, and rank 0 alone can compute logits.
    """

    embedding: Matrix
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Matrix

    @classmethod
    def empty(
        cls,
        config: ModelConfig,
        shard: Shard,
        dtype: torch.dtype,
        device: torch.device,
        precision: Precision = Precision(),  # noqa: B008
        turned: bool = False,
    ) -> Self:
        """Memory for a shard of a model; the shard must divide the config.

        turned: a basis of V is folded into the projections of attention.
        """
        vocab, hidden = config.vocab_size, config.hidden_size

        def matrix() -> Matrix:
            kind = precision.head_matrix(hidden)
            if kind is not None:
                return kind((vocab,), hidden, device)
            return torch.empty(vocab, hidden, dtype=dtype, device=device)

        layers = tuple(
            LayerWeights.empty(config, shard, dtype, device, precision, index, turned)
            for index in range(config.layers)
        )
        norm = torch.empty(hidden, dtype=dtype, device=device)
        embedding = matrix()
        return cls(embedding, layers, norm, embedding if config.tied else matrix())
