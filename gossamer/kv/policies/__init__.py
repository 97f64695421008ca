"""What to keep of K and V: one policy per file. CONTRIBUTING.md has the recipe for a new one.

These rank a row by itself. Policies that look at other rows or at queries are in
`gossamer.evaluation.policies`: what they keep depends on what came later or on the schedule.
"""

from gossamer.kv.policies.base import Policy, Ranking
from gossamer.kv.policies.magnitude import Magnitude
from gossamer.kv.policies.weighted import Gradient, Weighted

__all__ = ["POLICIES", "Policy", "Ranking", "statistics"]

POLICIES: dict[str, Policy] = {
    policy.name: policy for policy in (Magnitude(), Weighted(), Gradient())
}


def statistics() -> tuple[str, ...]:
    """What a calibration measures for the policies that need one, in their order."""
    return tuple(p.statistic for p in POLICIES.values() if p.statistic is not None)
