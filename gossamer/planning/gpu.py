"""What a GPU was measured to do: how long its kernels take by size, and what the engine adds.

A file per measured GPU in `gpus/`, made from committed results by
`python -m benchmarks.reports.gpus`. Others are scaled from a measured one by their data sheets.
"""

import json
import re
from bisect import bisect_left
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from gossamer.kv import KVConfig
from gossamer.ops.kv_block import BLOCK_TOKENS, BlockFormat

SHIPPED = Path(__file__).with_name("gpus")
REFERENCE = "h200"  # others are scaled from it


@dataclass(frozen=True)
class Curve:
    """Seconds by size: straight lines between measured points, and on beyond the outer ones.

    Raises ValueError unless sizes rise and seconds do not fall, over two points or more.
    """

    sizes: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        rises = all(a < b for a, b in pairwise(self.sizes))
        rises = rises and all(a <= b for a, b in pairwise(self.seconds))
        if len(self.sizes) != len(self.seconds) or len(self.sizes) < 2 or not rises:
            raise ValueError(f"{self} is no curve; must be two points or more that rise")

    def at(self, size: float) -> float:
        left = min(max(bisect_left(self.sizes, size) - 1, 0), len(self.sizes) - 2)
        (x0, x1), (y0, y1) = self.sizes[left : left + 2], self.seconds[left : left + 2]
        return max(0.0, y0 + (size - x0) * (y1 - y0) / (x1 - x0))

    @property
    def points(self) -> list[tuple[float, float]]:
        return list(zip(self.sizes, self.seconds, strict=True))

    def times(self, factor: float) -> "Curve":
        return replace(self, seconds=tuple(factor * s for s in self.seconds))


@dataclass(frozen=True)
class DecodeCurve:
    """A call of decode attention, by the bytes of K and V that it reads. layout: see `layout_of`;
    row_bytes: of K and V of a token in a KV head."""

    layout: str
    head_dim: int
    row_bytes: float
    curve: Curve

    @property
    def family(self) -> str:
        return family_of(self.layout)


@dataclass(frozen=True)
class EngineFacts:
    """What is fitted to runs of the engine, which `fitted` names, at one revision.

    prompt_flops: FLOP/s of prompts, GEMMs and attention together. layer_seconds: of a layer beside
    its GEMMs and attention. item_seconds: of a compressed cache in a layer, for each KV head of a
    sequence. token_seconds: of the host for each token that is decoded, while the GPU computes.
    """

    revision: str
    fitted: str
    prompt_flops: float
    layer_seconds: float
    item_seconds: float
    token_seconds: float


@dataclass(frozen=True)
class DataSheet:
    """memory: bytes; bandwidth: of it, bytes/s; flops: FLOP/s of dense GEMMs in 16 bits; link:
    bytes/s to other GPUs, one way."""

    memory: float
    bandwidth: float
    flops: float
    link: float

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{name} is {value!r}; must be a number above 0")


@dataclass(frozen=True)
class GPU:
    """copy: measured bytes/s. gemm: seconds of GEMMs with 10^9 weights of 16 bits, by rows.

    scaled_from: whose measurements these are, scaled; None for its own.
    """

    name: str
    sheet: DataSheet
    copy: float
    gemm: Curve
    decode: tuple[DecodeCurve, ...]
    engine: EngineFacts
    scaled_from: str | None = None

    def scaled(self, name: str, sheet: DataSheet) -> "GPU":
        """Another GPU: what reads memory by its bandwidth, what multiplies by its FLOP/s.

        A GEMM of one row reads its weights; what more rows add is arithmetic.
        """
        slower = self.sheet.bandwidth / sheet.bandwidth
        weaker = self.sheet.flops / sheet.flops
        read = self.gemm.seconds[0]
        gemm = tuple(slower * read + weaker * (s - read) for s in self.gemm.seconds)
        return replace(
            self,
            name=name,
            sheet=sheet,
            copy=self.copy / slower,
            gemm=replace(self.gemm, seconds=gemm),
            decode=tuple(replace(d, curve=d.curve.times(slower)) for d in self.decode),
            engine=replace(self.engine, prompt_flops=self.engine.prompt_flops / weaker),
            scaled_from=self.name,
        )

    def decode_curve(self, kv: KVConfig, head_dim: int) -> tuple[Curve, bool]:
        """Of this cache, and True; or of the most similar one of its kernel's family, and False.

        Similar are, in this order: heads of this dimension, and as many bytes a row. Raises
        ValueError where nothing of the family was measured.
        """
        layout, row_bytes = layout_of(kv, head_dim), _row_bytes(kv, head_dim)
        kin = [d for d in self.decode if d.family == family_of(layout)]
        if not kin:
            raise ValueError(
                f"kv is {kv}, of which nothing was measured on {self.name}; must be of the family "
                f"{' or '.join(dict.fromkeys(d.family for d in self.decode))}"
            )
        for found in kin:
            if (found.layout, found.head_dim) == (layout, head_dim):
                return found.curve, True
        near = min(kin, key=lambda d: (d.head_dim != head_dim, abs(d.row_bytes - row_bytes)))
        return near.curve, False

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`."""
        found = json.loads(text)
        return cls(
            name=found["name"],
            sheet=DataSheet(**found["sheet"]),
            copy=found["copy"],
            gemm=_curve(found["gemm"]),
            decode=tuple(
                DecodeCurve(**(d | {"curve": _curve(d["curve"])})) for d in found["decode"]
            ),
            engine=EngineFacts(**found["engine"]),
        )

    def to_json(self) -> str:
        facts = {name: value for name, value in asdict(self).items() if name != "scaled_from"}
        text = json.dumps(facts, indent=1)
        lists = re.compile(r"\[\s+([^][{}]+?)\s+\]")  # of numbers: on one line each
        return lists.sub(lambda m: f"[{' '.join(m[1].split())}]", text) + "\n"


def known_gpus() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob("*.json"))


def load_gpu(name: str) -> GPU:
    """One that was measured. Raises ValueError."""
    if name not in known_gpus():
        raise ValueError(
            f"gpu is {name!r}; must be {' or '.join(known_gpus())}, or come from a --gpu-file"
        )
    return GPU.from_json((SHIPPED / f"{name}.json").read_text())


def load_gpu_file(path: Path) -> GPU:
    """One by its data sheet, in JSON: name, and the numbers of DataSheet.

    Scaled from the REFERENCE, so nothing of it is measured. Raises ValueError, OSError.
    """
    names = ["name", *(field.name for field in fields(DataSheet))]
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # also what is not UTF-8
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(found, dict) or sorted(found) != sorted(names):
        raise ValueError(f"{path}: must be an object with {', '.join(names)}")
    name = found.pop("name")
    try:
        return load_gpu(REFERENCE).scaled(str(name), DataSheet(**found))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


# ---- what curves are called by -------------------------------------------------------------------


def layout_of(kv: KVConfig, head_dim: int) -> str:
    """K and V as stored, the same for both types of 16 bits: decode kernels take them alike."""
    return layout_name(kv.k.format(head_dim), kv.v.format(head_dim))


def layout_name(k: BlockFormat, v: BlockFormat) -> str:
    """Both sides, with both types of 16 bits called `16 bits`: no spec, but a key of curves."""
    return f"k={_side(k)},v={_side(v)}"


def family_of(layout: str) -> str:
    """Of decode kernels: sparse, dense or codes, as gossamer.kv.speed.kernel_family has them."""
    if "sparse:" in layout:
        return "sparse"
    return "dense" if "16 bits" in layout or "fp32" in layout else "codes"


def _side(fmt: BlockFormat) -> str:
    kind = "dense" if fmt.keep is None else f"sparse:{fmt.keep}"
    values = str(fmt.profile) if fmt.coded else fmt.values
    scales = "" if fmt.scales in (None, "none") else f"@{fmt.scales}"
    return f"{kind}:{'16 bits' if values in ('fp16', 'bf16') else values}{scales}"


def _row_bytes(kv: KVConfig, head_dim: int) -> float:
    return (kv.k.format(head_dim).nbytes + kv.v.format(head_dim).nbytes) / BLOCK_TOKENS


def _curve(found: dict[str, Any]) -> Curve:
    return Curve(tuple(found["sizes"]), tuple(found["seconds"]))
