"""Policies that remember their sequence: what is kept is what they say, exactly as much."""

import numpy as np
import pytest
import torch
from torch import Tensor

from gossamer.evaluation.policies import SEQUENCE_POLICIES as POLICIES
from gossamer.evaluation.policies import PolicyState, through_blocks
from gossamer.kv import Sparse

TOKENS, HEADS, QUERY_HEADS, HEAD_DIM = 64, 2, 4, 64
KEEP = 20


def observe(state: PolicyState) -> tuple[np.ndarray, np.ndarray]:
    """Queries in two parts, and attention; returned as the oracles want them."""
    queries, mass = torch.randn(50, QUERY_HEADS, HEAD_DIM), torch.rand(TOKENS, HEADS)
    state.observe_queries(queries[:45])
    state.observe_queries(queries[45:])
    state.observe_attention(mass / 2)
    state.observe_attention(mass / 2)
    recent = queries[-32:].view(32, HEADS, QUERY_HEADS // HEADS, HEAD_DIM).double().numpy()
    return recent, mass.double().numpy()


def _think(x, queries, mass):
    importance = np.sqrt((x**2).sum(0)) * np.sqrt((queries**2).sum((0, 2)))
    return np.broadcast_to(importance, x.shape)


# The score of every entry, in float64: the rule in the policy's docstring, written again.
ORACLES = {
    "query_aware": lambda x, queries, mass: np.abs(x) * np.abs(queries).mean((0, 2)),
    "think": _think,
    "per_channel": lambda x, queries, mass: np.abs(x),
    "attention_weighted": lambda x, queries, mass: np.abs(x) * mass[..., None],
    "random": None,
}


def packed(name: str, x: Tensor, state: PolicyState, values: str = "fp16") -> Tensor:
    """Which entries stay, from packed bytes."""
    return through_blocks(POLICIES[name](), Sparse(KEEP, values), x, state) != 0


def test_every_policy_has_an_oracle():
    assert set(ORACLES) == set(POLICIES)


@pytest.mark.parametrize("values", ["fp16", "int8"])
@pytest.mark.parametrize("name", POLICIES)
def test_exactly_as_much_is_kept(name, values):
    x = torch.rand(TOKENS, HEADS, HEAD_DIM) + 1  # no zeros, so what stays can be seen
    state = POLICIES[name]().start()
    observe(state)
    kept = packed(name, x, state, values)
    if POLICIES[name].axis == "token":
        assert (kept.sum(-1) == KEEP).all()
    else:
        assert (kept.unflatten(0, (-1, 32)).sum(1) == KEEP).all()


@pytest.mark.parametrize("name", [n for n, oracle in ORACLES.items() if oracle])
def test_what_is_kept_is_what_the_policy_says(name):
    """But for entries so close to the threshold that float32 cannot tell them apart."""
    x = torch.randn(TOKENS, HEADS, HEAD_DIM)
    state = POLICIES[name]().start()
    scores = ORACLES[name](x.double().numpy(), *observe(state))
    kept = packed(name, x, state).numpy()
    if POLICIES[name].axis == "channel":
        scores, kept = (
            np.moveaxis(a.reshape(-1, 32, HEADS, HEAD_DIM), 1, -1) for a in (scores, kept)
        )
    threshold = np.sort(scores, axis=-1)[..., -KEEP, None]
    assert kept[scores > threshold * (1 + 1e-5)].all()
    assert not kept[scores < threshold * (1 - 1e-5)].any()


@pytest.mark.parametrize("name", POLICIES)
def test_equal_histories_give_equal_choices(name):
    x, seed = torch.randn(TOKENS, HEADS, HEAD_DIM), torch.initial_seed()
    choices = []
    for _ in range(2):
        torch.manual_seed(seed)
        state = POLICIES[name]().start()
        observe(state)
        choices.append(packed(name, x, state))
    assert torch.equal(*choices)


@pytest.mark.parametrize("name", ["query_aware", "think", "attention_weighted"])
def test_what_was_observed_matters(name):
    x = torch.randn(TOKENS, HEADS, HEAD_DIM)
    blank, informed = POLICIES[name]().start(), POLICIES[name]().start()
    observe(informed)
    assert not torch.equal(packed(name, x, blank), packed(name, x, informed))


@pytest.mark.parametrize("name", [n for n, p in POLICIES.items() if p.axis == "token"])
@pytest.mark.parametrize("head_dim", [80, 128])
def test_other_head_dims(name, head_dim):
    x = torch.rand(TOKENS, HEADS, head_dim) + 1
    assert (packed(name, x, POLICIES[name]().start()).sum(-1) == KEEP).all()


@pytest.mark.parametrize("name", ["per_channel", "attention_weighted"])
def test_channels_of_a_head_dim_that_is_no_multiple_of_32(name):
    x = torch.rand(TOKENS, HEADS, 80) + 1
    kept = packed(name, x, POLICIES[name]().start())
    assert (kept.unflatten(0, (-1, 32)).sum(1) == KEEP).all()


def test_think_keeps_its_channels_for_the_whole_sequence():
    policy = POLICIES["think"]()
    state = policy.start()
    observe(state)
    first = policy.rank(torch.randn(TOKENS, HEADS, HEAD_DIM), state).scores
    observe(state)
    later = policy.rank(torch.randn(32, HEADS, HEAD_DIM), state).scores
    assert torch.equal(first[:32], later)
    assert (first == first[0]).all()


def test_random_choices_go_on():
    policy, x = POLICIES["random"](), torch.randn(TOKENS, HEADS, HEAD_DIM)
    state = policy.start()
    assert not torch.equal(packed("random", x, state), packed("random", x, state))


def test_attention_is_used_once():
    """The rows after those that were packed have their own attention."""
    policy = POLICIES["attention_weighted"]()
    state = policy.start()
    state.observe_attention(torch.rand(TOKENS, HEADS))
    assert policy.rank(torch.randn(TOKENS, HEADS, HEAD_DIM), state).scores is not None
    assert policy.rank(torch.randn(TOKENS, HEADS, HEAD_DIM), state).scores is None


def test_bad_input():
    with pytest.raises(
        ValueError, match=r"rows have shape \[30, 2, 64\]; must be .* multiple of 32"
    ):
        packed("random", torch.randn(30, HEADS, HEAD_DIM), POLICIES["random"]().start())
    state = POLICIES["attention_weighted"]().start()
    state.observe_attention(torch.rand(3, HEADS))
    with pytest.raises(ValueError, match=r"attention has shape \[3, 2\]; must be \[64, 2\]"):
        POLICIES["attention_weighted"]().rank(torch.randn(64, 2, 8), state)
    with pytest.raises(
        ValueError, match=r"attention has shape \[4, 2\]; must be \[3, 2\], as before"
    ):
        state.observe_attention(torch.rand(4, HEADS))
    for name in ("query_aware", "think"):
        with pytest.raises(ValueError, match="window is 0; must be >= 1"):
            POLICIES[name](window=0)
    state = POLICIES["query_aware"]().start()
    state.observe_queries(torch.randn(4, 5, HEAD_DIM))
    with pytest.raises(ValueError, match="queries have 5 heads; must be a multiple of 2"):
        POLICIES["query_aware"]().rank(torch.randn(64, 2, HEAD_DIM), state)
