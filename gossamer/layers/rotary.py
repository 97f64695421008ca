"""Rotary position embedding from tables of cosines and sines."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from gossamer.layers.base import KernelLayer, positive
from gossamer.ops import rope, rope_inplace

# Frequencies of these kinds do not change with the length of a sequence.
FIXED_KINDS = ("default", "linear", "llama3", "yarn")


class RotaryEmbedding(KernelLayer):
    """Turns pairs of channels by angles that grow with the position.

    inv_freq: rotary_dim / 2 inverse frequencies; channels from rotary_dim on are left alone.
    max_positions: positions are below it. scale: factor on cosines and sines (yarn).
    interleaved: pairs are (2i, 2i + 1), not (i, i + rotary_dim / 2).
    `rotate(x, positions)` turns x [tokens, heads, head_dim]; `rotate_(...)` does so in place;
    `rotary(x, position_ids)` returns what transformers' modules of this name return.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        inv_freq: Sequence[float],
        max_positions: int,
        *,
        scale: float = 1.0,
        interleaved: bool = False,
        device: torch.device | str = "cpu",
        use_custom_kernels: bool = True,
    ) -> None:
        super().__init__(use_custom_kernels)
        positive("max_positions", max_positions)
        self.interleaved = interleaved
        cos, sin = rope_tables(inv_freq, scale, max_positions, device)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @classmethod
    def from_theta(cls, head_dim: int, max_positions: int, theta: float = 10_000.0) -> Self:
        """The embedding of a plain model: frequencies theta^(-2i / head_dim)."""
        if head_dim < 2 or head_dim % 2:
            raise ValueError(f"head_dim is {head_dim}; must be even and at least 2")
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return cls((1.0 / theta**exponents).tolist(), max_positions)

    @classmethod
    def from_transformers(
        cls, module: nn.Module, max_positions: int | None = None, *, use_custom_kernels: bool = True
    ) -> Self:
        """In place of LlamaRotaryEmbedding and its like, for positions below max_positions.

        max_positions: by default as many as the model's config says. ValueError for kinds whose
        frequencies depend on the length of the sequence (dynamic, longrope).
        """
        inv_freq: Any = getattr(module, "inv_freq", None)
        kind = getattr(module, "rope_type", "default")
        if not isinstance(inv_freq, Tensor) or kind not in FIXED_KINDS:
            raise ValueError(
                f"{type(module).__name__} has rope_type {kind!r}; must have an inv_freq and be "
                f"one of {', '.join(FIXED_KINDS)}"
            )
        length: Any = max_positions or getattr(module, "max_seq_len_cached", None)
        return cls(
            inv_freq.tolist(),
            positive("max_positions", length),
            scale=float(getattr(module, "attention_scaling", 1.0)),
            device=inv_freq.device,
            use_custom_kernels=use_custom_kernels,
        )

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """(cos, sin) [batch, tokens, rotary_dim] in x's dtype, of position_ids [batch, tokens]."""
        cos, sin = self.cos[position_ids], self.sin[position_ids]
        return torch.cat((cos, cos), -1).to(x.dtype), torch.cat((sin, sin), -1).to(x.dtype)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [tokens, heads, head_dim] turned by positions [tokens], int64."""
        if self.uses_kernels(x):
            return rope(x, positions, self.cos, self.sin, interleaved=self.interleaved)
        return self._plain(x, positions)

    def rotate_(self, x: Tensor, positions: Tensor) -> Tensor:
        """`rotate` in place; x itself."""
        if self.uses_kernels(x):
            rope_inplace(x, positions, self.cos, self.sin, interleaved=self.interleaved)
            return x
        return x.copy_(self._plain(x, positions))

    def _plain(self, x: Tensor, positions: Tensor) -> Tensor:
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        half = cos.shape[-1]
        turned, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
        if self.interleaved:
            a, b = turned[..., ::2], turned[..., 1::2]
            pairs = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
        else:
            a, b = turned.chunk(2, dim=-1)
            pairs = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        return torch.cat((pairs.to(x.dtype), rest), -1)

    def extra_repr(self) -> str:
        return f"{2 * self.cos.shape[1]}, max_positions={len(self.cos)}"


def rope_tables(
    inv_freq: Sequence[float], scale: float, positions: int, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """Cosines and sines, float32 [positions, len(inv_freq)], times `scale`.

    Made on the CPU, so that all devices and ranks have the same; angles in float32, as
    transformers has them.
    """
    frequencies = torch.tensor(inv_freq, dtype=torch.float32)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies
    return (angles.cos() * scale).to(device), (angles.sin() * scale).to(device)
