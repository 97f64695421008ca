"""What a search has found: measured caches, the frontier, the one to use, and the file of them.

`--kv FILE.json` takes the cache that such a file recommends.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gossamer.bench.record import describe_device, revision, versions
from gossamer.evaluation.frontier.candidates import Budget
from gossamer.evaluation.frontier.measure import Measuring, SearchError
from gossamer.evaluation.pareto import front
from gossamer.evaluation.statistics import Change
from gossamer.kv import Coded, KVConfig, KVShape, Sparse
from gossamer.kv.speed import DecodeSpeed
from gossamer.ops.checks import one_of
from gossamer.ops.kv_block import VALUE_BITS

Role = Literal["dense", "uniform", "pair", "variant"]


@dataclass(frozen=True)
class Aim:
    """What the best cache within a budget is: the least NLL, time or bytes, with a bound on NLL.

    Raises ValueError for another objective, and for a bound that is no number above 0.
    """

    objective: str = "quality"
    max_loss: float | None = None

    def __post_init__(self) -> None:
        one_of("objective", self.objective, OBJECTIVES)
        if self.max_loss is not None and not 0 < self.max_loss < math.inf:
            raise ValueError(f"max_loss is {self.max_loss}; must be above 0, like 0.01")

    def best(self, rows: "Sequence[MeasuredCache]", budget: str) -> "MeasuredCache":
        """Of rows within the budget. Raises SearchError where none is within the bound."""
        bound = math.inf if self.max_loss is None else self.max_loss
        allowed = [row for row in rows if row.added <= bound]
        if not allowed:
            least = min(rows, key=lambda row: row.added)
            raise SearchError(
                f"no cache within {budget} adds at most {bound:+g} NLL; the nearest is "
                f"{least.spec} with {least.added:+.4f}"
            )
        return min(allowed, key=OBJECTIVES[self.objective])

    def __str__(self) -> str:
        words = {"quality": "the least", "speed": "the fastest", "bytes": "the smallest"}
        bound = "" if self.max_loss is None else f" that adds at most {self.max_loss:+g}"
        return f"{words[self.objective]} of what was measured{bound}"


@dataclass(frozen=True)
class MeasuredCache:
    """A row of the table. share: at the budget's length; layout_share: beyond windows.

    change: in NLL per token against dense, which has none itself. speed: of decoding.
    """

    config: KVConfig
    role: Role
    share: float
    layout_share: float
    bytes_per_token: float
    change: Change | None
    speed: DecodeSpeed | None = None

    @classmethod
    def of(
        cls,
        config: KVConfig,
        role: Role,
        change: Change | None,
        shape: KVShape,
        length: int,
        speed: DecodeSpeed | None = None,
    ) -> "MeasuredCache":
        share = config.share_at(shape, length)
        plain = KVConfig().bytes_per_token(shape)
        return cls(config, role, share, config.share(shape), share * plain, change, speed)

    @property
    def spec(self) -> str:
        return str(self.config)

    @property
    def added(self) -> float:
        """NLL per token more than dense."""
        return 0.0 if self.change is None else self.change.value

    @property
    def half(self) -> float:
        """Of the 95% interval; infinite where one piece of text was all."""
        return 0.0 if self.change is None else self.change.half


def _slowness(row: MeasuredCache) -> float:
    """Time against dense; where it was not measured, last."""
    factor = None if row.speed is None else row.speed.against_dense
    return math.inf if factor is None else 1 / factor


OBJECTIVES: dict[str, Callable[[MeasuredCache], tuple[float, ...]]] = {
    "quality": lambda row: (row.added, row.share),
    "speed": lambda row: (_slowness(row), row.added, row.share),
    "bytes": lambda row: (row.share, row.added),
}


@dataclass(frozen=True)
class Outcome:
    """rows: small ones first. notes: what was left out, and why."""

    budget: Budget
    rows: tuple[MeasuredCache, ...]
    recommended: MeasuredCache
    perplexity: float
    notes: tuple[str, ...] = ()
    aim: Aim = field(default_factory=Aim)

    @classmethod
    def of(
        cls,
        budget: Budget,
        rows: Sequence[MeasuredCache],
        perplexity: float,
        notes: Sequence[str] = (),
        aim: Aim | None = None,
    ) -> "Outcome":
        """Raises SearchError where nothing within the budget and the aim was measured."""
        aim = aim or Aim()
        within = [r for r in rows if r.role != "dense" and r.share <= budget.share + 1e-12]
        if not within:
            raise SearchError(f"no cache within {budget.text} was measured: {'; '.join(notes)}")
        best = aim.best(within, budget.text)
        ordered = sorted(rows, key=lambda row: (row.share, row.added))
        return cls(budget, tuple(ordered), best, perplexity, tuple(notes), aim)

    @property
    def frontier(self) -> list[MeasuredCache]:
        """Rows that no other one beats in memory and in NLL."""
        return front({row: (row.share, row.added) for row in self.rows})

    def times_less(self, row: MeasuredCache) -> float | None:
        """How many times less NLL a cache adds than uniform pruning of 16-bit values.

        None without that row, and where one of the two adds nothing that could be measured.
        """
        plain = next((r for r in self.rows if r.role == "uniform" and not _quantised(r)), None)
        return None if plain is None or plain is row else _ratio(plain, row)

    def reason(self) -> str:
        """Why this one, in one line."""
        row, count = self.recommended, sum(r.role != "dense" for r in self.rows)
        line = f"{row.share:.1%} of dense float16 at {self.budget.length:,} tokens; "
        line += f"adds {row.added:+.4f} NLL, {self.aim} within "
        line += f"{self.budget.text} ({count} caches in all)"
        if row.added <= row.half:
            line += ", not told apart from dense"
        if row.speed is not None:
            line += f"; decoding against dense: {row.speed.short}"
        uniform = [r for r in self.rows if r.role == "uniform" and r is not row]
        for other in sorted(uniform, key=_quantised):
            ratio = _ratio(other, row)
            if ratio is not None:
                line += f"; {ratio:.1f} times less than {other.spec}"
        return line


def _quantised(row: MeasuredCache) -> bool:
    layout = row.config.k.layout
    if isinstance(layout, Coded):
        return True
    return VALUE_BITS[layout.values if isinstance(layout, Sparse) else layout.dtype] < 16


def _ratio(other: MeasuredCache, row: MeasuredCache) -> float | None:
    if other.added <= 0 or row.added <= 0 or not math.isfinite(other.added):
        return None
    return other.added / row.added


# ---- the file ------------------------------------------------------------------------------------


def choice(outcome: Outcome, measuring: Measuring) -> dict[str, Any]:
    """kv: the recommended spec; the rest says what it is the best of, and for what."""
    best, conditions = outcome.recommended, measuring.conditions
    made = None
    if conditions.calibration is not None and best.config.calibrated:
        made = dict(zip(("file", "sha256"), conditions.calibration, strict=True))
    return {
        "kv": best.spec,
        "model": conditions.model,
        "budget": outcome.budget.text,
        "length": outcome.budget.length,
        "objective": outcome.aim.objective,
        "max_loss": outcome.aim.max_loss,
        **_facts(best),
        "reason": outcome.reason(),
        "calibration": made,
        "text": measuring.text.settings,
        "dense_perplexity": outcome.perplexity,
        "frontier": [_line(row) for row in outcome.frontier],
        "measured": [_line(row) for row in outcome.rows],
        "notes": list(outcome.notes),
        **conditions.setup,
        "device": describe_device(conditions.device),
        "versions": versions(),
        "revision": revision(),
    }


def write_choice(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _line(row: MeasuredCache) -> dict[str, Any]:
    return {"kv": row.spec, "role": row.role, **_facts(row)}


def _facts(row: MeasuredCache) -> dict[str, Any]:
    ends = (round(end, 6) for end in (row.added - row.half, row.added + row.half))
    return {
        "share": round(row.share, 6),
        "layout_share": round(row.layout_share, 6),
        "bytes_per_token": round(row.bytes_per_token, 2),
        "nll_change": round(row.added, 6),
        "interval": list(ends) if math.isfinite(row.half) else None,
        "kernel": None if row.speed is None else row.speed.kernel,
        "decode_against_dense": None if row.speed is None else row.speed.against_dense,
    }
