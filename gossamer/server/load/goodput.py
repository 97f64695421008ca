"""Goodput: the requests that were answered within bounds of latency."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gossamer.server.load.client import ClientResult
from gossamer.workloads.bounds import Bounds


def met(bounds: Bounds, result: ClientResult) -> bool:
    """By an answer that came to its end. What has no second token has no time per token."""
    if result.error is not None or result.left:
        return False
    seen = (result.first, result.per_token, result.whole)
    wanted = (bounds.ttft, bounds.tpot, bounds.e2e)
    return all(
        bound is None or seconds is None or seconds * 1e3 <= bound
        for bound, seconds in zip(wanted, seen, strict=True)
    )


def goodput(bounds: Bounds, results: Sequence[ClientResult], seconds: float) -> dict[str, Any]:
    """Requests per second within all bounds, and their share of those that did not leave."""
    good = sum(met(bounds, result) for result in results)
    stayed = sum(not result.left for result in results)
    return {
        "bounds_ms": asdict(bounds),
        "requests_per_second": good / seconds,
        "share": good / stayed if stayed else 0.0,
    }
