"""What a calibration measures of a text: sums of second moments, and what they amount to."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gossamer.kv.coded_basis import CodedBasis
from gossamer.kv.policies import statistics
from gossamer.kv.shape import KVShape


@dataclass(frozen=True, eq=False)
class Bases:
    """What the moments of a text amount to; float32, per layer and KV head.

    Columns of a basis [L, Hk, D, D] are sorted by energy: row vectors turn as `x @ basis`.
    energies [L, Hk, D]: mean square of each coordinate in that basis. ranks [L, Hk, D], by name:
    what policies weigh K by, see `rank_name`. coded: of "k" and "v".
    """

    k_basis: Tensor
    v_basis: Tensor
    k_energies: Tensor
    v_energies: Tensor
    ranks: Mapping[str, Tensor]
    tokens: int
    coded: Mapping[str, CodedBasis] = field(default_factory=dict)


def rank_name(statistic: str, basis: str) -> str:
    """The root mean square of a policy's statistic, as K is ("none") or in the basis of K."""
    return f"k_{statistic}" if basis == "none" else f"k_basis_{statistic}"


def rank_names() -> tuple[str, ...]:
    """All that a calibration has."""
    return tuple(rank_name(s, basis) for s in statistics() for basis in ("none", "pca"))


def energy_in_top_half(energies: Tensor) -> float:
    """Share of the energy [..., D] in the first half of the coordinates, mean over the heads."""
    half = energies.shape[-1] // 2
    return float((energies[..., :half].sum(-1) / energies.sum(-1).clamp_min(1e-30)).mean())


class Moments:
    """Sums of k k^T, v v^T and q q^T per layer and KV head, in float64, chunk by chunk."""

    def __init__(self, shape: KVShape) -> None:
        self.shape = shape
        size = (shape.layers, shape.kv_heads, shape.head_dim, shape.head_dim)
        self.kk, self.vv, self.qq = (torch.zeros(size, dtype=torch.float64) for _ in range(3))
        self.tokens = [0] * shape.layers

    def add(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Count the tokens of one chunk. q: [Hq, T, D]; k, v: [Hk, T, D]; q and k after RoPE.

        Raises ValueError for a layer that is not there or another shape.
        """
        shape = self.shape
        if not 0 <= layer < shape.layers:
            raise ValueError(f"Moments.add: layer is {layer}; must be 0 to {shape.layers - 1}")
        heads = {"q": (q, shape.query_heads), "k": (k, shape.kv_heads), "v": (v, shape.kv_heads)}
        tokens = q.shape[1] if q.dim() == 3 else 0
        for name, (x, count) in heads.items():
            expected = [count, tokens, shape.head_dim]
            if list(x.shape) != expected:
                raise ValueError(
                    f"Moments.add: {name} has shape {list(x.shape)}; must be {expected}"
                )
        # The query heads of a KV head are neighbours, so their tokens become one long sequence.
        self.qq[layer] += _second_moment(q.reshape(shape.kv_heads, -1, shape.head_dim))
        self.kk[layer] += _second_moment(k)
        self.vv[layer] += _second_moment(v)
        self.tokens[layer] += tokens

    def finish(
        self, others: Mapping[str, Tensor], coded: Mapping[str, CodedBasis] | None = None
    ) -> Bases:
        """Bases and ranks of everything added so far.

        others: what policies rank by but for the queries ("weights"), by the name of the statistic:
        second moments [L, Hk, D, D]. coded: handed on. Raises ValueError when one is missing,
        layers saw different numbers of tokens, fewer than head_dim, or sums are not finite.
        """
        tokens, shape = self.tokens[0], self.shape
        if len(set(self.tokens)) > 1:
            raise ValueError(f"layers saw different numbers of tokens: {self.tokens}")
        if tokens < shape.head_dim:  # the rest of the basis would be arbitrary
            raise ValueError(
                f"calibrated on {tokens} tokens; must be at least {shape.head_dim}, the head_dim"
            )
        measured = {"weights": self.qq / (tokens * (shape.query_heads // shape.kv_heads)), **others}
        if set(measured) != set(statistics()):
            raise ValueError(f"measured {sorted(measured)}; must be {sorted(statistics())}")
        sums_of = {"q": self.qq, "k": self.kk, "v": self.vv, **others}
        for name, sums in sums_of.items():
            bad = (~sums.isfinite().flatten(1).all(1)).nonzero().flatten().tolist()
            if bad:
                raise ValueError(f"{name} is not finite in layers {bad}")
        k_energies, k_basis = _principal_axes(self.kk / tokens)
        v_energies, v_basis = _principal_axes(self.vv / tokens)
        ranks = {}
        for name, moment in measured.items():
            ranks[rank_name(name, "none")] = _root_mean_square(moment)
            ranks[rank_name(name, "pca")] = _root_mean_square(k_basis.mT @ moment @ k_basis)
        return Bases(
            k_basis=k_basis.float(),
            v_basis=v_basis.float(),
            k_energies=k_energies.float(),
            v_energies=v_energies.float(),
            ranks=ranks,
            tokens=tokens,
            coded=coded or {},
        )


def _root_mean_square(moment: Tensor) -> Tensor:
    """Of each coordinate, from second moments [..., D, D]; float32."""
    return moment.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt().float().contiguous()


def _second_moment(x: Tensor) -> Tensor:
    wide = x.detach().to(torch.float64)
    return (wide.mT @ wide).cpu()


def _principal_axes(moment: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors (columns), largest first, signs fixed."""
    energies, axes = torch.linalg.eigh(moment)
    energies, axes = energies.flip(-1).clamp_min(0), axes.flip(-1)
    largest = axes.gather(-2, axes.abs().argmax(-2, keepdim=True))
    return energies, (axes * torch.where(largest < 0, -1.0, 1.0)).contiguous()
