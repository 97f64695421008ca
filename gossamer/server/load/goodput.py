"""Goodput: the requests that were answered within bounds of latency."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from gossamer.server.load.client import ClientResult


@dataclass(frozen=True)
class Bounds:
    """Milliseconds at most; None for any.

    ttft: time to first token; tpot: time per output token after the first, on average over the
    answer; e2e: the whole request.
    """

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Bounds":
        """From `ttft:500,tpot:50,e2e:5000` or some of these. Raises ValueError."""
        names, found = [field.name for field in fields(cls)], dict[str, float]()
        for part in text.split(","):
            name, _, number = (piece.strip() for piece in part.partition(":"))
            if name not in names or name in found:
                raise ValueError(
                    f"--goodput has {part.strip()!r}; must be NAME:MILLISECONDS, "
                    f"each of {', '.join(names)} at most once"
                )
            found[name] = _positive(name, number)
        return cls(**found)

    def met(self, result: ClientResult) -> bool:
        """By an answer that came to its end. What has no second token has no time per token."""
        if result.error is not None or result.left:
            return False
        seen = (result.first, result.per_token, result.whole)
        bounds = (self.ttft, self.tpot, self.e2e)
        return all(
            bound is None or seconds is None or seconds * 1e3 <= bound
            for bound, seconds in zip(bounds, seen, strict=True)
        )

    def __str__(self) -> str:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return ", ".join(f"{name} <= {value:g} ms" for name, value in given.items())


def _positive(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"--goodput has {name}:{text}; must be milliseconds above 0")
    return value


def goodput(bounds: Bounds, results: Sequence[ClientResult], seconds: float) -> dict[str, Any]:
    """Requests per second within all bounds, and their share of those that did not leave."""
    met, stayed = sum(map(bounds.met, results)), sum(not result.left for result in results)
    return {
        "bounds_ms": asdict(bounds),
        "requests_per_second": met / seconds,
        "share": met / stayed if stayed else 0.0,
    }
