"""The one decoder: Llama, Mistral, Qwen2 and Qwen3; attention is left to the caller."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.models.config import ModelConfig
from gossamer.models.rope import rope_tables
from gossamer.models.shard import Shard
from gossamer.models.weights import LayerWeights, Weights
from gossamer.ops import fused_residual_rmsnorm, linear, rope, silu_mul

# attend(layer, q [T, Hq, D], k [T, Hk, D], v [T, Hk, D]) -> [T, Hq, D] or [T, Hq * D].
# q and k are after RoPE; scaling (1 / sqrt(D)), causality and sliding windows are its own job.
# All three are views with rows of D that are contiguous; heads are those of the shard.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]

# Up to so many rows on a CPU, `linear` is 1.4 to 4 times as fast as torch (one core of a Zen 4
# EPYC). There it stays ahead up to about 128 rows; CPUs with matrix units may cross earlier.
FEW_ROWS = 16


class Decoder:
    """A decoder, or one shard of it, on one device. Inference only; see Attend for attention.

    max_len: positions are below it; its cosines and sines are made here. ValueError if it is not
    at least 1.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, *, max_len: int, shard: Shard | None = None
    ) -> None:
        if max_len < 1:
            raise ValueError(f"max_len is {max_len}; must be at least 1")
        self.config, self.weights, self.max_len = config, weights, max_len
        self.shard = shard or Shard()
        self.dtype, self.device = weights.norm.dtype, weights.norm.device
        self._cos, self._sin = rope_tables(config.inv_freq, config.rope_scale, max_len, self.device)
        self._query_heads = config.query_heads // self.shard.size
        self._roped_heads = self._query_heads + config.kv_heads // self.shard.size
        self._all_heads = self._roped_heads + config.kv_heads // self.shard.size
        self._zero = torch.zeros((), dtype=self.dtype, device=self.device)
        self._ones = torch.ones(config.head_dim, dtype=self.dtype, device=self.device)

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states [T, hidden] after the final norm, of tokens [T] at positions [T] (int64).

        Tokens may be of several sequences: only `attend` knows which belong together.
        """
        weights, eps = self.weights, self.config.norm_eps
        # Each norm adds what the block before it made; before the first one, that is nothing.
        delta = F.embedding(ids, weights.embedding)
        residual = self._zero.expand_as(delta)
        for index, layer in enumerate(weights.layers):
            x, residual = fused_residual_rmsnorm(delta, residual, layer.attention_norm, eps)
            delta = self._attention(index, layer, x, positions, attend)
            x, residual = fused_residual_rmsnorm(delta, residual, layer.mlp_norm, eps)
            x = silu_mul(_linear(x, layer.gate_up, layer.gate_up_bias))
            delta = self.shard.reduce(_linear(x, layer.down, layer.down_bias))
        return fused_residual_rmsnorm(delta, residual, weights.norm, eps)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, vocab] in the model's dtype, of hidden states [N, hidden]."""
        return _linear(hidden, self.weights.head, None)

    def _attention(
        self, index: int, layer: LayerWeights, x: Tensor, positions: Tensor, attend: Attend
    ) -> Tensor:
        tokens, dims = x.shape[0], self.config.head_dim
        queries, roped = self._query_heads, self._roped_heads
        qkv = _linear(x, layer.qkv, layer.qkv_bias).view(tokens, self._all_heads, dims)
        turned = qkv[:, :roped]  # q and k are neighbours: one norm, one rotation
        if layer.qk_norm is not None:
            # Rounded before the product with the weights, as transformers does.
            none = self._zero.expand_as(turned)
            normed, _ = fused_residual_rmsnorm(turned, none, self._ones, self.config.norm_eps)
            turned = normed * layer.qk_norm
        turned = rope(turned, positions, self._cos, self._sin)
        out = attend(index, turned[:, :queries], turned[:, queries:], qkv[:, roped:])
        return self.shard.reduce(
            _linear(out.reshape(tokens, queries * dims), layer.o, layer.o_bias)
        )


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Our own product for the few rows of a decode step on a CPU, torch's for all others."""
    few = x.is_cpu and x.shape[0] <= FEW_ROWS
    return linear(x, weight, bias) if few else F.linear(x, weight, bias)
