"""Bases of K and V: how rows are turned into them and back, for rows and for weights.

V's basis is folded into projections (gossamer.kv.folding). K's is applied at run time: RoPE lies
between it and the projections.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gossamer.ops import Turn


def inverse(matrix: Tensor) -> Tensor:
    """Of each matrix [..., D, D], by QR.

    torch.linalg.inv factors a batch on several CPU threads, and from D = 151 on its LU is then
    wrong, often without an error: https://github.com/pytorch/pytorch/issues/142815.
    """
    q, r = torch.linalg.qr(matrix)
    found: Tensor = torch.linalg.solve_triangular(r, q.mT, upper=True)
    return found


def invertible(matrix: Tensor) -> bool:
    """Whether all matrices [..., D, D] are, as far as float64 tells."""
    diagonal = torch.linalg.qr(matrix.double())[1].diagonal(dim1=-2, dim2=-1).abs()
    smallest = torch.finfo(torch.float64).eps * matrix.shape[-1] * diagonal.amax(-1)
    return bool((diagonal.amin(-1) > smallest).all())


@dataclass(frozen=True, eq=False)
class Basis:
    """Rows x become (x - mean) @ matrix; any invertible matrix, per layer and KV head.

    matrix: [L, Hk, D, D]. mean: [L, Hk, D] or None; only for K, where it shifts all scores of a
    query alike, so that softmax does not see it.
    """

    matrix: Tensor
    mean: Tensor | None = None

    @cached_property
    def inverse(self) -> Tensor:
        """Of the matrix as it is, rounded or not; float64. Queries turn by its transpose."""
        return inverse(self.matrix.to(torch.float64))

    def part(self, layers: slice = slice(None), heads: slice = slice(None)) -> "Basis":
        """The same for some of the layers and KV heads."""
        mean = None if self.mean is None else self.mean[layers, heads]
        return Basis(self.matrix[layers, heads], mean)

    def rounded(self, dtype: torch.dtype) -> "Basis":
        """In this type. Its inverse is that of the rounded matrix: what rounding does to one
        factor of q M^-T (k M)^T does not add up with what it does to the other.
        """
        return Basis(self.matrix.to(dtype), self.mean)


class QueryKeyTurn:
    """A basis of K as one batched GEMM: q' = q M^-T and k' = (k - mean) M, side by side.

    Each query head has a copy of its KV head's matrix, so that q and k, which lie next to each
    other where a model computes them, are turned as they lie.
    """

    def __init__(self, basis: Basis, group: int, dtype: torch.dtype, device: torch.device) -> None:
        rounded = basis.rounded(dtype)
        queries = rounded.inverse.mT.repeat_interleave(group, 1)
        both = torch.cat([queries, rounded.matrix.to(torch.float64)], 1)
        self._matrices = both.to(device, dtype).contiguous()  # [L, Hq + Hk, D, D]
        self._offsets: Tensor | None = None
        if basis.mean is not None:
            wide = basis.mean.to(torch.float64).unsqueeze(-2) @ rounded.matrix.to(torch.float64)
            none = wide.new_zeros(*queries.shape[:2], 1, wide.shape[-1])
            self._offsets = torch.cat([none, -wide], 1).to(device, dtype)  # [L, Hq + Hk, 1, D]

    def of(self, layer: int) -> Turn:
        """For `rope_append`."""
        offsets = None if self._offsets is None else self._offsets[layer].squeeze(1)
        return Turn(self._matrices[layer], offsets)

    def __call__(self, layer: int, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q [T, Hq, D] and k [T, Hk, D], both after RoPE, in the basis of K."""
        rows = side_by_side(q, k).transpose(0, 1)
        if self._offsets is None:
            turned = torch.bmm(rows, self._matrices[layer])
        else:  # in one go: the difference from the mean is rounded, not the two of them
            offsets = self._offsets[layer].expand(-1, rows.shape[1], -1)
            turned = torch.baddbmm(offsets, rows, self._matrices[layer])
        turned = turned.transpose(0, 1)
        return turned[:, : q.shape[1]], turned[:, q.shape[1] :]


def side_by_side(q: Tensor, k: Tensor) -> Tensor:
    """[T, Hq + Hk, D]; no copy where q and k are neighbours in one tensor."""
    apart = q.shape[1] * q.stride(1)
    same = q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
    if same and q.stride() == k.stride() and k.storage_offset() - q.storage_offset() == apart:
        size = (q.shape[0], q.shape[1] + k.shape[1], q.shape[2])
        return q.as_strided(size, q.stride(), q.storage_offset())
    return torch.cat([q, k], 1)


def turn_q_and_k(q: Tensor, k: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """q [..., Hq, T, D] and k [..., Hk, T, D], both after RoPE, in the basis [Hk, D, D] of K.

    The basis is orthogonal, so every score stays what it was; k is what a cache with k_basis=pca
    stores, and q must attend to it. Raises ValueError for shapes that do not fit.
    """
    kv_heads, head_dim = basis.shape[0], basis.shape[-1]
    for name, x in (("q", q), ("k", k)):
        heads = x.shape[-3] if x.dim() >= 3 else 0
        fits = heads % kv_heads == 0 if name == "q" else heads == kv_heads
        if x.dim() < 3 or not fits or x.shape[-1] != head_dim:
            raise ValueError(
                f"{name} has shape {list(x.shape)}; must have {kv_heads} KV heads (or a multiple, "
                f"for q) of {head_dim}, as the basis {list(basis.shape)}"
            )
    return turn(q, basis), turn(k, basis)


def turn(x: Tensor, basis: Tensor) -> Tensor:
    """x [..., heads, T, D] in the basis [Hk, D, D] of its KV heads."""
    basis = basis.to(x.device, x.dtype)
    turned: Tensor = (x.unflatten(-3, (len(basis), -1)) @ basis.unsqueeze(1)).flatten(-4, -3)
    return turned
