"""What to keep of K and V: one policy per file, one dataclass each.

To add one: a file with a dataclass that extends `Policy`, its class in `POLICIES`, and its oracle
in tests/kv/test_policies.py, whose matrix then runs over it.
"""

from torch import Tensor

from gossamer.kv.policies.attention_weighted import AttentionWeighted
from gossamer.kv.policies.base import Policy, PolicyState, Ranking
from gossamer.kv.policies.magnitude import Magnitude
from gossamer.kv.policies.per_channel import PerChannel
from gossamer.kv.policies.query_aware import QueryAware
from gossamer.kv.policies.random import Random
from gossamer.kv.policies.think import ThinK
from gossamer.kv.policies.weighted import Gradient, Weighted
from gossamer.ops.checks import one_of

__all__ = ["CALIBRATED", "POLICIES", "Policy", "PolicyState", "Ranking", "make_policy"]

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        Magnitude,
        Weighted,
        Gradient,
        QueryAware,
        ThinK,
        PerChannel,
        AttentionWeighted,
        Random,
    )
}

CALIBRATED = tuple(name for name, policy in POLICIES.items() if issubclass(policy, Weighted))


def make_policy(name: str, weights: Tensor | None = None) -> Policy:
    """The policy that specs call `name`; `weights` of one layer for those that are calibrated.

    Raises ValueError for an unknown name, or a calibrated policy without weights.
    """
    one_of("policy", name, POLICIES)
    policy = POLICIES[name]
    if not issubclass(policy, Weighted):
        return policy()
    if weights is None:
        raise ValueError(f"policy {name!r} needs weights; calibrate the model first")
    return policy(weights)
