"""What a search has found: measured caches, the frontier, and the one to use."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gossamer.evaluation.frontier.budget import Budget, share_at
from gossamer.evaluation.frontier.pareto import front
from gossamer.evaluation.statistics import Change
from gossamer.kv import KVConfig, KVShape, Sparse
from gossamer.ops.kv_block import VALUE_BITS

Role = Literal["dense", "uniform", "pair", "variant"]


class SearchError(Exception):
    """A search that has nothing to recommend."""


@dataclass(frozen=True)
class Row:
    """A cache that was measured. share: at the budget's length; layout_share: beyond windows.

    change: in NLL per token against dense, which has none itself.
    """

    config: KVConfig
    role: Role
    share: float
    layout_share: float
    bytes_per_token: float
    change: Change | None

    @classmethod
    def of(
        cls, config: KVConfig, role: Role, change: Change | None, shape: KVShape, length: int
    ) -> "Row":
        share = share_at(config, shape, length)
        plain = KVConfig().bytes_per_token(shape)
        return cls(config, role, share, config.share(shape), share * plain, change)

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


@dataclass(frozen=True)
class Outcome:
    """rows: small ones first. notes: what was left out, and why."""

    budget: Budget
    rows: tuple[Row, ...]
    recommended: Row
    perplexity: float
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, budget: Budget, rows: Sequence[Row], perplexity: float, notes: Sequence[str] = ()
    ) -> "Outcome":
        """Raises SearchError where nothing within the budget was measured."""
        within = [r for r in rows if r.role != "dense" and r.share <= budget.share + 1e-12]
        if not within:
            raise SearchError(f"no cache within {budget.words} was measured: {'; '.join(notes)}")
        best = min(within, key=lambda row: (row.added, row.share))
        ordered = sorted(rows, key=lambda row: (row.share, row.added))
        return cls(budget, tuple(ordered), best, perplexity, tuple(notes))

    @property
    def frontier(self) -> list[Row]:
        """Rows that no other one beats in memory and in NLL."""
        return front({row: (row.share, row.added) for row in self.rows})

    def times_less(self, row: Row) -> float | None:
        """How many times less NLL a cache adds than uniform pruning of 16-bit values.

        None without that row, and where one of the two adds nothing that could be measured.
        """
        plain = next((r for r in self.rows if r.role == "uniform" and not _quantised(r)), None)
        return None if plain is None or plain is row else _ratio(plain, row)

    def reason(self) -> str:
        """Why this one, in one line."""
        row, count = self.recommended, sum(r.role != "dense" for r in self.rows)
        words = f"{row.share:.1%} of dense float16 at {self.budget.length:,} tokens; "
        words += f"adds {row.added:+.4f} NLL, the least of what was measured within "
        words += f"{self.budget.words} ({count} caches in all)"
        if row.added <= row.half:
            words += ", not told apart from dense"
        uniform = [r for r in self.rows if r.role == "uniform" and r is not row]
        for other in sorted(uniform, key=_quantised):
            ratio = _ratio(other, row)
            if ratio is not None:
                words += f"; {ratio:.1f} times less than {other.spec}"
        return words


def _quantised(row: Row) -> bool:
    layout = row.config.k.layout
    return VALUE_BITS[layout.values if isinstance(layout, Sparse) else layout.dtype] < 16


def _ratio(other: Row, row: Row) -> float | None:
    if other.added <= 0 or row.added <= 0 or not math.isfinite(other.added):
        return None
    return other.added / row.added
