"""Facts of an op that are made up, for checklists to judge."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import torch

from gossamer.bench import Measurement, Record, Timing
from gossamer.bench.suite import Target
from gossamer.kit.checklist import Fallback, Memory, Parity, Profiled
from gossamer.kit.speed import Point


def point(speedup, **changes):
    made = Point((4, 8), "float16", "", "cuda", "eager", ours_ms=1.0, peer_ms=speedup)
    return replace(made, **changes)


@dataclass
class Given:
    """A `Measure` that finds what it is given: by default, a good op."""

    parity: list = field(default_factory=lambda: [Parity("cpu", 9, {"float32": 1e-7})])
    speed: list = field(default_factory=lambda: [point(2.0), point(1.0)])
    bytes: Memory = field(default_factory=lambda: Memory(0, 100, "eager", 300, "4x8 float16"))
    fallback: list = field(default_factory=lambda: [Fallback("reference", "reference")])
    profiled: Profiled | None = field(default_factory=lambda: Profiled("gossamer::x", 0.9, 1, 0.5))
    missing: list = field(default_factory=list)
    device: str = "cpu"
    source: str = ""
    suite: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(target=Target()))

    def parities(self):
        return self.parity

    def points(self):
        return self.speed

    def memory(self):
        return self.bytes

    def fallbacks(self):
        return self.fallback

    def profile(self):
        return self.profiled

    def undocumented(self):
        return self.missing


def record(backend, ms, variant="", shape=(4,)):
    measured = Measurement(Timing(ms, ms, ms, ms, 1), 0.0, 0.0)
    return Record.of(
        measured, op="silu_mul", backend=backend, shape=shape, dtype=torch.float16,
        variant=variant, bytes=1, flops=1, ceiling_gbps=1.0, device="cpu",
    )  # fmt: skip
