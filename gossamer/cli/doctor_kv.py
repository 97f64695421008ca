"""`gossamer doctor --kv SPEC`: which kernel a cache decodes with here, its bytes and its speed."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gossamer.engine import EngineConfig
from gossamer.engine.build import sized_cache
from gossamer.kv import Calibration, KVConfig, KVShape
from gossamer.kv.speed import DecodeSpeed, cuda_limits, decode_speed, kernel_family
from gossamer.models import Source, open_model
from gossamer.ops import BlockFormat

LLAMA_8B = {"heads": 32, "kv_heads": 8, "head_dim": 128}
COLUMNS = ("cache", "bytes per token", "share", "device", "kernel", "us per layer", "dense", "")


@dataclass(frozen=True)
class Asked:
    """The caches, and of which model; without one, a layer with these heads.

    heads: heads, kv_heads and head_dim where they are given. engine: dtype, device, calibration.
    """

    specs: Sequence[str]
    model: str | None = None
    heads: dict[str, int] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.model is not None and self.heads:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in self.heads)
            raise ValueError(f"{names} next to --model; must be one or the other")


@dataclass(frozen=True)
class CacheReport:
    """One cache on one device."""

    kv: str
    device: str
    dtype: str
    bytes_per_token: float
    share: float
    speed: DecodeSpeed

    @property
    def facts(self) -> dict[str, Any]:
        return {**asdict(self), "against_dense": self.speed.against_dense}


def cache_reports(asked: Asked) -> Iterator[CacheReport]:
    """On the present device and, if that is no GPU, by which kernel on one. Raises ValueError."""
    source = None if asked.model is None else open_model(asked.model)
    sizes = LLAMA_8B | asked.heads
    shape = KVShape(1, sizes["heads"], sizes["kv_heads"], sizes["head_dim"])
    BlockFormat(shape.head_dim)  # refuses others before anything is computed for them
    kept = None
    if source is not None:
        shape, kept = source.config.kv_shape, source.config.dtype
    for spec in asked.specs:
        config = EngineConfig(model=source or "", kv=spec, **asked.engine)
        device = config.resolved_device()
        dtype = config.resolved_dtype(device, kept)
        kv = _resolved(config, source, shape, dtype)
        speed = decode_speed(kv, shape, dtype, device)
        yield _report(spec, str(device), dtype, kv, shape, speed)
        if device.type != "cuda":
            half = config.resolved_dtype(torch.device("cuda"), kept)
            kv = _resolved(config, source, shape, half)
            yield _report(spec, "a CUDA GPU", half, kv, shape, _cuda_kernel(kv, shape, half))


def _resolved(
    config: EngineConfig, source: Source | None, shape: KVShape, dtype: torch.dtype
) -> KVConfig:
    """Without a model, percentages are those of channels that are all alike."""
    if source is not None:
        return sized_cache(config, source, dtype)
    path = config.calibration
    known = Calibration.blank(shape, "") if path is None else Calibration.load(path)
    return KVConfig.of(config.kv, dtype).resolve(known)


def _cuda_kernel(kv: KVConfig, shape: KVShape, dtype: torch.dtype) -> DecodeSpeed:
    limits = cuda_limits(kv, shape, dtype)
    if limits is not None:
        return DecodeSpeed("triton", tuned=False, reason=limits)
    return DecodeSpeed(f"cuda {kernel_family(kv, shape.head_dim)}", tuned=True)


def _report(
    spec: str, device: str, dtype: torch.dtype, kv: KVConfig, shape: KVShape, speed: DecodeSpeed
) -> CacheReport:
    name = str(dtype).removeprefix("torch.")
    return CacheReport(spec, device, name, kv.bytes_per_token(shape), kv.share(shape), speed)


def print_caches(reports: Sequence[CacheReport], console: Console) -> None:
    table = Table(COLUMNS[0])
    for name in COLUMNS[1:]:
        table.add_column(name, justify="left" if name in ("device", "kernel") else "right")
    for report in reports:
        table.add_row(*map(Text, _cells(report)))
    console.print(table)
    for report in reports:
        if report.speed.slow:
            because = f" ({report.speed.reason})" if report.speed.reason else ""
            text = f"slow: {report.kv} on {report.device} by {report.speed.kernel}{because}"
            console.print(Text(text, style="bold yellow"))
    points = dict.fromkeys(r.speed.point for r in reports if r.speed.point)
    console.print(Text(f"measured at {'; '.join(points) or 'no device'}", style="dim"))


def _cells(report: CacheReport) -> tuple[str, ...]:
    speed = report.speed
    times = ["-" if us is None else f"{us:,.0f}" for us in (speed.us, speed.dense_us)]
    factor = "" if speed.against_dense is None else f"{speed.against_dense:.2f}x"
    size = (f"{report.bytes_per_token:,.0f}", f"{report.share:.1%}")
    device = f"{report.device}, {report.dtype}"
    return (report.kv, *size, device, speed.kernel, *times, factor)
