"""The recipe of coded rows: from rows of a text and the loss's gradient by them to a CodedBasis.

A change e of a row changes the loss by about e . g, with the gradient g; its square, averaged over
rows, is what codes shall keep small. Per layer and KV head:

- K is centred, V is not (first blocks, whose tokens are far from all others, are left out).
- s of a row is its length in a basis in which all directions are alike (Mahalanobis); rows are
  z = x / s, and a relative error of them is worth G = E[(s g)(s g)^T], where no row of a window
  counts more than all but 1% of them do.
- The basis whitens G and diagonalises Z = E[|s g| z z^T] in it: errors of its channels do not add
  up in the loss, and the channels are not correlated in rows that the loss depends on. Channels
  are divided by their standard deviation and sorted by their share of the loss.
- What a channel is worth is measured on other rows than those that its basis was made of (halves of
  the text, against each other): on its own rows, a basis finds directions that hardly matter.
- The step of a channel for b bits is the best one for a normal distribution (BEST_STEP) times the
  factor with the least mean square error on sampled rows. Codes of 8 bits are fine enough for more:
  their range has room for the largest number that a sampled row has. (They are for the channels
  that matter most, where a few rows beyond the range cost more than all others.)
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.kv.coded_basis import SCALES, STEP_BITS, CodedBasis
from gossamer.kv.shape import KVShape
from gossamer.ops.kv_block import BLOCK_TOKENS
from gossamer.ops.kv_profile import BEST_STEP

CENTRED = {"k": True, "v": False}
SAMPLES = 2048  # rows of a head that steps are chosen on
# Of the mean eigenvalue, added to all: what the text hardly had is not without limit.
RIDGE, LENGTH_RIDGE = 1e-3, 1e-6
FACTORS = tuple(0.5 * 1.08**i for i in range(24))  # 0.5 to 2.9
WHOLE_RANGE, SPARE = 8, 1.25  # bits that never clip a sampled row, and how much room beyond
SMALLEST = 1e-4
MOST = 0.99  # quantile of rows by the length of their gradient: a few would decide alone


class Rows:
    """Rows of K or V after the first block of each window: moments, and a sample."""

    def __init__(self, shape: KVShape, tokens: int) -> None:
        """tokens: about as many as will come, for the sample."""
        size = (shape.layers, shape.kv_heads, shape.head_dim)
        self.sums = torch.zeros(size, dtype=torch.float64)
        self.second = torch.zeros(*size, shape.head_dim, dtype=torch.float64)
        self.counts = [0] * shape.layers
        self.samples: list[list[Tensor]] = [[] for _ in range(shape.layers)]
        self._every = max(1, tokens // SAMPLES)

    def add(self, layer: int, x: Tensor) -> None:
        """Count the rows of one window, [Hk, T, D], or [Hk, copies, T, D] at other positions."""
        rows = _after_first_block(x)
        wide = rows.to(torch.float64)
        self.sums[layer] += wide.sum(1).cpu()
        self.second[layer] += (wide.mT @ wide).cpu()
        self.counts[layer] += rows.shape[1]
        self.samples[layer].append(rows[:, :: self._every].float().cpu())

    def mean(self, layer: int) -> Tensor:
        return self.sums[layer] / max(1, self.counts[layer])

    def spread(self, layer: int, mean: Tensor) -> Tensor:
        """Second moment about `mean`, [Hk, D, D]."""
        count = max(1, self.counts[layer])
        first = self.sums[layer] / count
        outer = first.unsqueeze(-1) * mean.unsqueeze(-2)
        own = mean.unsqueeze(-1) * mean.unsqueeze(-2)
        return self.second[layer] / count - outer - outer.mT + own


class Sensitivity:
    """How much the loss depends on rows of K or V, in a second pass over the text.

    Sums over two halves of the windows, [2, L, Hk, D, D]. gradients: g g^T; relative:
    (s g)(s g)^T; directions: |s g| z z^T, with |s g| 1 on average.
    """

    def __init__(self, rows: Rows, centred: bool) -> None:
        self._means, self._whiten = [], []
        for layer in range(len(rows.samples)):
            mean = rows.mean(layer) if centred else torch.zeros_like(rows.sums[layer])
            spread = rows.spread(layer, mean)
            self._means.append(mean)
            self._whiten.append(_power(spread, -0.5, LENGTH_RIDGE).float())
        self.mean = torch.stack(self._means)
        self.gradients, self.relative, self.directions = (
            torch.zeros(2, *rows.second.shape, dtype=torch.float64) for _ in range(3)
        )
        self.counts = torch.zeros(2, len(rows.samples))

    def add(self, layer: int, x: Tensor, gradient: Tensor) -> None:
        """Count the rows of one window, as in Rows.add, and the loss's gradient by them."""
        rows, gradient = (_after_first_block(t).float() for t in (x, gradient))
        half = int(self.counts[1, layer] < self.counts[0, layer])
        centred = rows - self._means[layer].float().to(rows.device).unsqueeze(1)
        scale = row_scale(centred @ self._whiten[layer].to(rows.device))
        relative = clipped(gradient * scale)
        for sums, part in (
            (self.gradients, clipped(gradient)),
            (self.relative, relative),
            (self.directions, centred / scale * importance(relative).sqrt()),
        ):
            wide = part.to(torch.float64)
            sums[half, layer] += (wide.mT @ wide).cpu()
        self.counts[half, layer] += rows.shape[1]

    def of(self, layer: int) -> "Moments":
        """[2, Hk, D, D] each. Raises ValueError where something is not finite."""
        counts = self.counts[:, layer, None, None, None]
        sums = [s[:, layer] for s in (self.gradients, self.relative, self.directions)]
        if not bool(counts.all()):  # of one window, both halves are the whole
            sums, counts = [s.sum(0).expand_as(s) for s in sums], counts.sum().clamp_min(1)
        found = [s / counts for s in sums]
        if not all(bool(x.isfinite().all()) for x in found):
            raise ValueError(f"rows or their gradients are not finite in layer {layer}")
        return Moments(*found)


class Moments(NamedTuple):
    """Of one layer, see Sensitivity."""

    gradients: Tensor
    relative: Tensor
    directions: Tensor

    def worth(self, relative: bool) -> Tensor:
        """What the channels of a basis are worth on rows that it was not made of, [Hk, D]."""
        found = []
        for half in range(2):
            _, inverse = channels(self.directions[half], self.relative[half])
            other = (self.relative if relative else self.gradients)[1 - half]
            found.append((inverse @ other @ inverse.mT).diagonal(dim1=-2, dim2=-1))
        return torch.stack(found).mean(0).clamp_min(0)


def _after_first_block(x: Tensor) -> Tensor:
    """Rows [Hk, N, D] of a window, all copies one after another."""
    return x.detach()[..., BLOCK_TOKENS:, :].flatten(1, -2)


def row_scale(z: Tensor) -> Tensor:
    """Root mean square of rows [..., D], [..., 1]."""
    return z.square().mean(-1, keepdim=True).sqrt().clamp_min(SMALLEST)


def importance(gradients: Tensor) -> Tensor:
    """Of rows by their gradients [Hk, T, D] in proportion to their lengths; 1 on average."""
    lengths = gradients.norm(dim=-1, keepdim=True)
    mean = lengths.mean(1, keepdim=True)
    return torch.where(mean > 0, lengths / mean, 1.0)


def clipped(gradients: Tensor) -> Tensor:
    """[Hk, T, D] of one window, none longer than all but 1% of them; a NaN stays."""
    lengths = gradients.norm(dim=-1, keepdim=True)
    most = lengths.quantile(MOST, 1, keepdim=True)
    return torch.where(lengths > most, gradients * (most / lengths), gradients)


def coded_basis(rows: Rows, sensitivity: Sensitivity) -> CodedBasis:
    """Layer by layer. Raises ValueError where something is not finite, or no row had a gradient."""
    layers = [_Layer.fit(rows, sensitivity, layer) for layer in range(len(rows.samples))]
    parts = (torch.stack([getattr(one, name) for one in layers]) for name in _Layer.NAMES)
    return CodedBasis(sensitivity.mean.float(), *(part.float().contiguous() for part in parts))


@dataclass(frozen=True, eq=False)
class _Layer:
    NAMES = ("basis", "steps", "errors")

    basis: Tensor
    steps: Tensor
    errors: Tensor

    @classmethod
    def fit(cls, rows: Rows, sensitivity: Sensitivity, layer: int) -> "_Layer":
        moments = sensitivity.of(layer)
        basis, _ = channels(moments.directions.mean(0), moments.relative.mean(0))
        sample = torch.cat(rows.samples[layer], 1)
        z = (sample - sensitivity.mean[layer].float().unsqueeze(1)) @ basis.float()
        found = []
        for scales in SCALES:
            scale = row_scale(z) if scales == "row" else torch.ones_like(z[..., :1])
            steps, errors = best_steps(z / scale)
            found.append((steps, errors * moments.worth(scales == "row").unsqueeze(-2)))
        steps, errors = (torch.stack(part, 1) for part in zip(*found, strict=True))
        return cls(basis, steps, errors)


def channels(directions: Tensor, relative: Tensor) -> tuple[Tensor, Tensor]:
    """Basis [Hk, D, D] and its inverse, from Z and G; float64."""
    root, back = _power(relative, 0.5, RIDGE), _power(relative, -0.5, RIDGE)
    axes = torch.linalg.eigh(root @ directions @ root)[1]
    basis, inverse = root @ axes, axes.mT @ back
    deviation = (basis.mT @ directions @ basis).diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
    deviation = deviation.clamp_min(deviation.amax(-1, keepdim=True) * SMALLEST).clamp_min(1e-30)
    basis, inverse = basis / deviation.unsqueeze(-2), inverse * deviation.unsqueeze(-1)
    worth = (inverse @ relative @ inverse.mT).diagonal(dim1=-2, dim2=-1)
    order = worth.argsort(-1, descending=True)
    basis = basis.gather(-1, order.unsqueeze(-2).expand_as(basis))
    return basis, inverse.gather(-2, order.unsqueeze(-1).expand_as(inverse))


def best_steps(z: Tensor) -> tuple[Tensor, Tensor]:
    """Steps [Hk, 4, D] and mean square errors [Hk, 5, D] of rows z [Hk, N, D]; 0 bits last."""
    steps, errors = [], []
    for bits in STEP_BITS:
        if bits == WHOLE_RANGE:
            reach = z.abs().amax(1) * (SPARE / 2 ** (bits - 1))
            steps.append(reach.clamp_min(BEST_STEP[bits]))
            errors.append(_error(z, bits, steps[-1].unsqueeze(1)))
            continue
        tried = torch.stack([_error(z, bits, BEST_STEP[bits] * factor) for factor in FACTORS])
        least = tried.min(0)
        steps.append(torch.tensor(FACTORS)[least.indices] * BEST_STEP[bits])
        errors.append(least.values)
    errors.append(z.square().mean(1))
    return torch.stack(steps, 1), torch.stack(errors, 1)


def _error(z: Tensor, bits: int, step: float | Tensor) -> Tensor:
    """Mean square error of codes of this step, [Hk, D]; one for all or by channel [Hk, 1, D]."""
    half = 2 ** (bits - 1)
    coded = ((z / step).floor_().clamp_(-half, half - 1) + 0.5).mul_(step)
    return coded.sub_(z).square_().mean(1)


def _power(moment: Tensor, exponent: float, ridge: float) -> Tensor:
    """Of a positive semidefinite matrix [..., D, D], and a little of the identity."""
    values, vectors = torch.linalg.eigh(moment)
    least = values.clamp_min(0).mean(-1, keepdim=True).clamp_min(1e-30) * ridge
    powers = (values.clamp_min(0) + least) ** exponent
    raised: Tensor = vectors @ torch.diag_embed(powers) @ vectors.mT
    return raised
