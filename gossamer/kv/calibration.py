"""Bases and rank weights for K and V, measured on a calibration text.

Pruning loses less in a basis in which few coordinates carry most of the energy: per layer and KV
head, the eigenvectors of the uncentred second moment of K (after RoPE) and of V. (Centring it
first made the result worse.) Entries of K are ranked by what they do to scores: |k_c| times the
root mean square of the queries' coordinate c; or by what they do to the loss: |k_c| times the root
mean square of the loss's gradient (see Gradients). Coded rows have bases and steps of their own
(see gossamer.kv.coding).
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from gossamer.kv.bases import Basis
from gossamer.kv.bits import Errors, pick_bits, pick_both, pick_kernel_pair
from gossamer.kv.coded_basis import CodedBasis
from gossamer.kv.extras import import_extra
from gossamer.kv.fingerprint import SKETCHES, Fingerprint
from gossamer.kv.layouts import Coded, Layout, Side
from gossamer.kv.manifest import AGAIN, Manifest
from gossamer.kv.moments import Bases, rank_name, rank_names
from gossamer.kv.policies import POLICIES
from gossamer.kv.shape import KVShape

BASES = ("k_basis", "v_basis")
# float32 leaves errors of about 1e-6 in U^T U; a basis that was damaged or scaled is far off.
ORTHOGONALITY_TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class Calibration:
    """Bases and rank weights of one model; see Bases for the tensors, all float32.

    coded: how rows of "k" and "v" become codes; one that was made otherwise may have none. heads:
    the KV heads that the tensors are of, for a shard of the model; None for all. Raises ValueError
    for shapes that are not the manifest's, and bases that are not orthogonal.
    """

    manifest: Manifest
    k_basis: Tensor
    v_basis: Tensor
    ranks: Mapping[str, Tensor]
    coded: Mapping[str, CodedBasis] = field(default_factory=dict)
    heads: range | None = None

    def __post_init__(self) -> None:
        shape = self.manifest.shape
        if self.heads is not None:
            shape = shape.part(self.heads)
        weights = (shape.layers, shape.kv_heads, shape.head_dim)
        if unknown := set(self.ranks) - set(rank_names()):
            raise ValueError(f"has tensors {sorted(unknown)}; must be of {sorted(rank_names())}")
        for side, coded in self.coded.items():
            coded.check(shape, side)
        for name, tensor in {**self.ranks, **{n: getattr(self, n) for n in BASES}}.items():
            expected = (*weights, shape.head_dim) if name in BASES else weights
            if tensor.dtype is not torch.float32 or tuple(tensor.shape) != expected:
                raise ValueError(
                    f"{name} is {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}; "
                    f"must be float32 {list(expected)}"
                )
        for name, tensor in self.ranks.items():
            if not bool((tensor.isfinite() & (tensor >= 0)).all()):
                raise ValueError(f"{name} has negative or infinite values")
        for name in BASES:
            error = _distance_from_orthogonal(getattr(self, name))
            if not error <= ORTHOGONALITY_TOLERANCE:  # also when it is NaN
                raise ValueError(f"{name} is not orthogonal: U^T U is off by {error:.2g}")

    @classmethod
    def of(cls, bases: Bases, manifest: Manifest) -> Self:
        """The part of the bases that is kept."""
        return cls(manifest, bases.k_basis, bases.v_basis, bases.ranks, bases.coded)

    @classmethod
    def blank(cls, shape: KVShape, model: str) -> Self:
        """Of a model whose weights are random: speed depends on shapes alone."""
        sketches = ((0.0,) * SKETCHES,) * shape.layers
        size = (shape.layers, shape.kv_heads, shape.head_dim)
        basis = torch.eye(shape.head_dim).repeat(*size[:2], 1, 1)
        ranks = {name: torch.ones(size) for name in rank_names()}
        manifest = Manifest(model, Fingerprint(shape, sketches, sketches), "", 0, "", "", "")
        coded = {name: CodedBasis.blank(shape) for name in ("k", "v")}
        return cls(manifest, basis, basis.clone(), ranks, coded)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Everything that was measured, by name."""
        coded = {n: x for side, basis in self.coded.items() for n, x in basis.tensors(side).items()}
        return {"k_basis": self.k_basis, "v_basis": self.v_basis, **self.ranks, **coded}

    def basis(self, name: str, side: Side) -> Basis | None:
        """The basis in which K ("k") or V ("v") of this side is stored; None: as it is.

        Raises ValueError for coded rows of which the calibration knows nothing.
        """
        if isinstance(side.layout, Coded):
            return self._coded(name, side.layout).resolved(side.layout)
        if side.basis == "none":
            return None
        return Basis(self.k_basis if name == "k" else self.v_basis)

    def pick_bits(self, k: Layout, v: Layout) -> tuple[Layout, Layout]:
        """The layouts with bits in the place of percentages of float16's bytes.

        Where both sides leave them open, bytes go to the one that needs them more, among bits that
        have kernels of their own if the head dimension has such.
        Raises ValueError for coded rows of which the calibration knows nothing, and for rows that
        are too short.
        """
        assert self.heads is None, "ranks with other heads would pick other bits"
        wanted = {n: x for n, x in (("k", k), ("v", v)) if isinstance(x, Coded) and not x.resolved}
        tables = {name: self._table(name, layout) for name, layout in wanted.items()}
        row = 2 * self.manifest.shape.head_dim  # bytes in float16
        room = {name: row * float(layout.bits) / 100 for name, layout in wanted.items()}
        try:
            if len(wanted) == 2:
                both = (tables["k"], tables["v"], sum(room.values()))
                best = pick_kernel_pair(*both) or pick_both(*both)
                return best[0].layout, best[1].layout
            picked = {name: pick_bits(tables[name], room[name]).layout for name in wanted}
        except ValueError as error:
            raise ValueError(f"{' and '.join(map(str, wanted.values()))}: {error}") from None
        return picked.get("k", k), picked.get("v", v)

    def _table(self, name: str, layout: Coded) -> Errors:
        scales = str(layout.scales)
        return {scales: self._coded(name, layout).table()[scales]}

    def _coded(self, name: str, layout: Coded) -> CodedBasis:
        if name not in self.coded:
            raise ValueError(
                f"the calibration of {self.manifest.model} has no steps of coded rows, which "
                f"{name}={layout} needs; {AGAIN}"
            )
        return self.coded[name]

    def weights(self, name: str, side: Side) -> Tensor | None:
        """What rows of K ("k") or V are packed with, [L, Hk, D]: ranks, or what codes are worth."""
        if isinstance(side.layout, Coded):
            return self._coded(name, side.layout).worth(side.layout)
        return self.rank_weights(side) if name == "k" else None

    def rank_weights(self, k: Side) -> Tensor | None:
        """What K's policy ranks by, [L, Hk, D] in the basis K is stored in; None: by nothing.

        Raises ValueError for a policy that the calibration was not made for.
        """
        statistic = POLICIES[k.policy].statistic
        if statistic is None:
            return None
        name = rank_name(statistic, k.basis)
        if name not in self.ranks:
            raise ValueError(
                f"the calibration of {self.manifest.model} has {', '.join(sorted(self.ranks))}; "
                f"k_policy={k.policy} needs {name}; {AGAIN}"
            )
        return self.ranks[name]

    def check(self, fingerprint: Fingerprint, model: str = "this model") -> None:
        """ValueError that names both models when this calibration was made for another one.

        Shape and K decide, so a model into which V's basis was folded is still the same one.
        """
        if difference := self.manifest.fingerprint.difference(fingerprint):
            raise ValueError(
                f"the calibration of {self.manifest.model} does not fit {model}: {difference}"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file, or leave what was there."""
        encode = import_extra("safetensors.torch").save
        tensors = {name: x.detach().cpu().contiguous() for name, x in self.tensors.items()}
        data = encode(tensors, metadata={"gossamer": json.dumps(asdict(self.manifest))})
        target = Path(path)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            temporary.write_bytes(data)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    @staticmethod
    def manifest_of(path: str | os.PathLike[str]) -> Manifest:
        """What a file says about itself, without its tensors; ValueError as of load."""
        safetensors = import_extra("safetensors")
        try:
            with safetensors.safe_open(os.fspath(path), framework="pt") as file:
                metadata = (file.metadata() or {}).get("gossamer")
        except safetensors.SafetensorError as error:
            raise ValueError(f"{path}: not a safetensors file: {error}") from None
        try:
            if metadata is None:
                raise ValueError("not a calibration: it has no manifest")
            return Manifest.from_dict(json.loads(metadata))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        fingerprint: Fingerprint | None = None,
        heads: range | None = None,
    ) -> Self:
        """Read a file that `save` wrote; ValueError names the file and what is wrong with it.

        With a fingerprint, a calibration that does not fit it is an error too; see check. heads: to
        read those KV heads and no others.
        """
        safetensors = import_extra("safetensors")
        try:
            with safetensors.safe_open(os.fspath(path), framework="pt") as file:
                metadata = (file.metadata() or {}).get("gossamer")
                tensors = {name: _read(file, name, heads) for name in file.keys()}  # noqa: SIM118
        except safetensors.SafetensorError as error:
            raise ValueError(f"{path}: not a safetensors file: {error}") from None
        try:
            if metadata is None:
                raise ValueError("not a calibration: it has no manifest")
            manifest = Manifest.from_dict(json.loads(metadata))
            if not {*BASES} <= set(tensors):
                raise ValueError(f"has tensors {sorted(tensors)}; must have {' and '.join(BASES)}")
            k_basis, v_basis = (tensors.pop(name) for name in BASES)
            found = {side: CodedBasis.of_tensors(tensors, side) for side in ("k", "v")}
            coded = {side: basis for side, basis in found.items() if basis is not None}
            known = {name for side, basis in coded.items() for name in basis.tensors(side)}
            ranks = {name: tensor for name, tensor in tensors.items() if name not in known}
            calibration = cls(manifest, k_basis, v_basis, ranks, coded, heads)
            if fingerprint is not None:
                calibration.check(fingerprint)
            return calibration
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def _read(file: Any, name: str, heads: range | None) -> Tensor:
    """A tensor [layers, KV heads, ...] of an open file."""
    if heads is None:
        whole: Tensor = file.get_tensor(name)
        return whole
    part: Tensor = file.get_slice(name)[:, heads.start : heads.stop]
    return part


def _distance_from_orthogonal(basis: Tensor) -> float:
    wide = basis.to(torch.float64)
    identity = torch.eye(wide.shape[-1], dtype=torch.float64, device=wide.device)
    return float((wide.mT @ wide - identity).abs().max())
