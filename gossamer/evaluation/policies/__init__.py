"""Policies of the literature that an engine's cache cannot have, for comparison.

What they keep of a block depends on later tokens (queries, attention) or the order of packing, so
it would not be the same in every batch, chunk or shared prefix; or they keep tokens of a channel
instead of channels of a token, which no attention kernel reads.
"""

from gossamer.evaluation.policies.attention_weighted import AttentionWeighted
from gossamer.evaluation.policies.base import PolicyState, SequencePolicy
from gossamer.evaluation.policies.blocks import through_blocks
from gossamer.evaluation.policies.per_channel import PerChannel
from gossamer.evaluation.policies.query_aware import QueryAware
from gossamer.evaluation.policies.random import Random
from gossamer.evaluation.policies.think import ThinK

__all__ = ["SEQUENCE_POLICIES", "PolicyState", "SequencePolicy", "through_blocks"]

SEQUENCE_POLICIES: dict[str, type[SequencePolicy]] = {
    policy.name: policy for policy in (QueryAware, ThinK, PerChannel, AttentionWeighted, Random)
}
