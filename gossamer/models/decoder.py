"""The one decoder: Llama, Mistral, Qwen2 and Qwen3; attention is left to the caller."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.layers import GatedMLP, RotaryEmbedding
from gossamer.models.config import ModelConfig
from gossamer.models.lora import DOWN, GATE_UP, OUT, QKV, LoRA
from gossamer.models.matrix import GgufMatrix, Matrix, PackedMatrix, embed, multiply
from gossamer.models.shard import Shard
from gossamer.models.weights import LayerWeights, Weights
from gossamer.ops import Rotation, fused_residual_rmsnorm, rmsnorm_rope, rope, silu_mul


@dataclass(frozen=True, eq=False)
class Projection:
    """Queries, keys and values of a layer, side by side as one GEMM makes them, before RoPE.

    qkv: [T, Hq + 2 Hk, D], the heads of the shard; queries: Hq.
    """

    qkv: Tensor
    queries: int
    rotation: Rotation

    def rotated(self) -> tuple[Tensor, Tensor, Tensor]:
        """q [T, Hq, D], k and v [T, Hk, D], q and k after RoPE; views of contiguous rows."""
        roped = (self.qkv.shape[1] + self.queries) // 2
        x, (positions, cos, sin, norm, eps) = self.qkv[:, :roped], self.rotation
        if norm is None:  # q and k are neighbours: one call for both
            turned = rope(x, positions, cos, sin)
        else:
            turned = rmsnorm_rope(x, norm, positions, cos, sin, eps)
        return turned[:, : self.queries], turned[:, self.queries :], self.qkv[:, roped:]


# attend(layer, projection) -> [T, Hq, D] or [T, Hq * D]. RoPE, scaling (1 / sqrt(D)), causality and
# sliding windows are its own job.
Attend = Callable[[int, Projection], Tensor]


def on_rotated(attend: Callable[[int, Tensor, Tensor, Tensor], Tensor]) -> Attend:
    """What attends with q, k and v, after RoPE."""
    return lambda layer, projection: attend(layer, *projection.rotated())


class Decoder:
    """A decoder, or one shard of it, on one device. Inference only; see Attend for attention.

    max_len: positions are below it; its cosines and sines are made here. ValueError if it is not
    at least 1. query_heads, kv_heads: of the shard.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, *, max_len: int, shard: Shard | None = None
    ) -> None:
        if max_len < 1:
            raise ValueError(f"max_len is {max_len}; must be at least 1")
        self.config, self.weights, self.max_len = config, weights, max_len
        self.shard = shard or Shard()
        self.dtype, self.device = weights.norm.dtype, weights.norm.device
        self._rotary = RotaryEmbedding(
            config.inv_freq, max_len, scale=config.rope_scale, device=self.device
        )
        self._norms = [self._norm(layer.attention_norm) for layer in weights.layers]
        self._mlp_norms = [self._norm(layer.mlp_norm) for layer in weights.layers]
        self._mlps = [_mlp(layer) for layer in weights.layers]
        self._last_norm = self._norm(weights.norm)
        shape = self.shard.kv_shape(config)
        self.query_heads, self.kv_heads = shape.query_heads, shape.kv_heads
        self._all_heads = self.query_heads + 2 * self.kv_heads
        self._zero = torch.zeros((), dtype=self.dtype, device=self.device)

    def forward(
        self, ids: Tensor, positions: Tensor, attend: Attend, lora: LoRA | None = None
    ) -> Tensor:
        """Hidden states [T, hidden] after the final norm, of tokens [T] at positions [T] (int64).

        Tokens may be of several sequences: only `attend` knows which belong together. lora: of
        tokens with adapters.
        """
        projection, residual = self.first(ids, positions, lora)
        last = len(self.weights.layers) - 1
        for layer in range(last):
            out = attend(layer, projection)
            projection, residual = self.between(layer, out, residual, positions, lora)
        return self.last(attend(last, projection), residual, lora)

    # ---- what lies between attentions: a forward pass in pieces ------------------------------

    def first(
        self, ids: Tensor, positions: Tensor, lora: LoRA | None = None
    ) -> tuple[Projection, Tensor]:
        """Up to the first attention: what it gets, and the residual [T, hidden]."""
        # Each norm adds what the block before it made; before the first one, that is nothing.
        embedded = embed(ids, self.weights.embedding, self.dtype)
        x, residual = self._norms[0](embedded, self._zero.expand_as(embedded))
        return self._project(0, x, positions, lora), residual

    def between(
        self,
        layer: int,
        out: Tensor,
        residual: Tensor,
        positions: Tensor,
        lora: LoRA | None = None,
    ) -> tuple[Projection, Tensor]:
        """From a layer's attention, `out` as of Attend, to the next one."""
        x, residual = self._norms[layer + 1](*self._after(layer, out, residual, lora))
        return self._project(layer + 1, x, positions, lora), residual

    def last(self, out: Tensor, residual: Tensor, lora: LoRA | None = None) -> Tensor:
        """From the last attention to hidden states."""
        layer = len(self.weights.layers) - 1
        return self._last_norm(*self._after(layer, out, residual, lora))[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, vocab] in the model's dtype, of hidden states [N, hidden]."""
        return multiply(hidden, self.weights.head)

    def _project(self, layer: int, x: Tensor, positions: Tensor, lora: LoRA | None) -> Projection:
        weights = self.weights.layers[layer]
        qkv = _adapted(layer, QKV, x, weights.qkv, weights.qkv_bias, lora)
        qkv = qkv.view(x.shape[0], self._all_heads, self.config.head_dim)
        cos, sin = self._rotary.cos, self._rotary.sin
        rotation = Rotation(positions, cos, sin, weights.qk_norm, self.config.norm_eps)
        return Projection(qkv, self.query_heads, rotation)

    def _after(
        self, layer: int, out: Tensor, residual: Tensor, lora: LoRA | None
    ) -> tuple[Tensor, Tensor]:
        """Output projection and MLP: what the next norm adds up."""
        weights = self.weights.layers[layer]
        rows = out.reshape(out.shape[0], self.query_heads * self.config.head_dim)
        delta = self.shard.reduce(_adapted(layer, OUT, rows, weights.o, weights.o_bias, lora))
        x, residual = self._mlp_norms[layer](delta, residual)
        return self.shard.reduce(self._gated(layer, x, lora)), residual

    def _gated(self, layer: int, x: Tensor, lora: LoRA | None) -> Tensor:
        if lora is None or not (lora.adapts(GATE_UP) or lora.adapts(DOWN)):
            out: Tensor = self._mlps[layer](x)
            return out
        weights = self.weights.layers[layer]
        gated = _adapted(layer, GATE_UP, x, weights.gate_up, weights.gate_up_bias, lora)
        return _adapted(layer, DOWN, silu_mul(gated), weights.down, weights.down_bias, lora)

    def _norm(self, weight: Tensor) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The operator itself: a module's call takes 3 us more, 61 times a step of SmolLM2."""
        eps = self.config.norm_eps
        return lambda x, residual: fused_residual_rmsnorm(x, residual, weight, eps)


def _mlp(layer: LayerWeights) -> Callable[[Tensor], Tensor]:
    gate_up, down = layer.gate_up, layer.down
    if not isinstance(gate_up, PackedMatrix) and not isinstance(down, PackedMatrix):
        return GatedMLP.with_weights(gate_up, down, layer.gate_up_bias, layer.down_bias)
    if isinstance(gate_up, GgufMatrix) and isinstance(down, GgufMatrix):
        return lambda x: gate_up.gated(x, layer.gate_up_bias, down, layer.down_bias)
    return lambda x: multiply(
        silu_mul(multiply(x, gate_up, layer.gate_up_bias)), down, layer.down_bias
    )


def _adapted(
    layer: int, gemm: int, x: Tensor, weight: Matrix, bias: Tensor | None, lora: LoRA | None
) -> Tensor:
    """A projection, and what adapters add to it."""
    y = multiply(x, weight, bias)
    if lora is not None:
        lora.add(layer, gemm, x, y)
    return y
