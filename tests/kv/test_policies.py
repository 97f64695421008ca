"""One matrix over all policies: what is kept is what the policy says, and exactly as much."""

import numpy as np
import pytest
import torch
from torch import Tensor

from gossamer.kv.layouts import Side, Sparse
from gossamer.kv.policies import POLICIES, Ranking
from gossamer.kv.store import BlockStore

TOKENS, HEADS, HEAD_DIM = 64, 2, 64
KEEP = 20
WEIGHTS = torch.rand(HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(1)) + 0.1

# The score of every entry, in float64: the rule in the policy's docstring, written again.
ORACLES = {
    "magnitude": lambda x, weights: np.abs(x),
    "weighted": lambda x, weights: np.abs(x) * weights,
    "gradient": lambda x, weights: np.abs(x) * weights,
}


def packed(name: str, x: Tensor, values: str = "fp16") -> Tensor:
    """Which entries stay, from packed bytes."""
    side = Side(Sparse(KEEP, values), policy=name)
    store = BlockStore.allocate(side, 4, HEADS, x.shape[2])
    slots = torch.arange(len(x)) + 32
    weights = None if POLICIES[name].statistic is None else WEIGHTS
    store.write(x, slots, POLICIES[name].rank(x, weights))
    return store.read(slots, torch.float32) != 0


def test_every_policy_has_an_oracle():
    assert set(ORACLES) == set(POLICIES)


@pytest.mark.parametrize("values", ["fp16", "int8"])
@pytest.mark.parametrize("name", POLICIES)
def test_exactly_as_much_is_kept(name, values):
    x = torch.rand(TOKENS, HEADS, HEAD_DIM) + 1  # no zeros, so what stays can be seen
    assert (packed(name, x, values).sum(-1) == KEEP).all()


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_kept_is_what_the_policy_says(name):
    """But for entries so close to the threshold that float32 cannot tell them apart."""
    x = torch.randn(TOKENS, HEADS, HEAD_DIM)
    scores = ORACLES[name](x.double().numpy(), WEIGHTS.double().numpy())
    kept = packed(name, x).numpy()
    threshold = np.sort(scores, axis=-1)[..., -KEEP, None]
    assert kept[scores > threshold * (1 + 1e-5)].all()
    assert not kept[scores < threshold * (1 - 1e-5)].any()


@pytest.mark.parametrize("name", POLICIES)
def test_a_row_is_ranked_by_itself(name):
    """The same entries stay whichever rows are packed together, and in whatever order."""
    x, order = torch.randn(TOKENS, HEADS, HEAD_DIM), torch.randperm(TOKENS)
    together = packed(name, x)
    assert torch.equal(packed(name, x[order]), together[order])
    assert torch.equal(torch.cat([packed(name, row[None]) for row in x]), together)


def test_a_ranking_is_one_thing():
    with pytest.raises(ValueError, match="a ranking has weights and scores; must have one of them"):
        Ranking(weights=WEIGHTS, scores=torch.rand(TOKENS, HEADS, HEAD_DIM))
