"""The sampler against a slow oracle in float64."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gossamer.engine.sampler import Sampled, log_weights, sample
from tests.engine.chance import surprise
from tests.engine.sampling_oracle import oracle, row

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def tokens(logits, rows):
    return [result.token for result in sample(logits, rows)]


VOCAB = 13
IDS = st.integers(0, VOCAB - 1)
# Quarters and powers of two, so that float32 is exact and ties are common.
QUARTERS = st.integers(-32, 32).map(lambda i: i / 4)
POWERS = st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0])


@st.composite
def exact_rows(draw):
    return row(
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        prompt=draw(st.lists(IDS, max_size=6)),
        output=draw(st.lists(IDS, max_size=6)),
        eos=tuple(draw(st.lists(IDS, max_size=2))),
        temperature=draw(POWERS),
        top_k=draw(st.integers(0, VOCAB + 2)),
        top_p=draw(st.just(1.0) | st.floats(0.01, 0.99)),
        min_p=draw(st.just(0.0) | st.floats(1e-4, 0.9)),
        repetition_penalty=draw(POWERS),
        presence_penalty=draw(st.integers(-8, 8)) / 4,
        frequency_penalty=draw(st.integers(-8, 8)) / 4,
        min_tokens=draw(st.integers(0, 6)),
        stop_token_ids=draw(st.lists(IDS, max_size=2)),
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(exact_rows(), st.lists(QUARTERS, min_size=VOCAB, max_size=VOCAB)),
                min_size=1, max_size=4))  # fmt: skip
def test_the_support_and_probabilities_are_those_of_the_oracle(cases):
    rows = [r for r, _ in cases]
    logits = torch.tensor([x for _, x in cases])
    weights = log_weights(logits, rows).double().exp()
    chosen = tokens(logits, rows)
    for i, r in enumerate(rows):
        expected = oracle(logits[i], r, assume)
        assert set(weights[i].nonzero().flatten().tolist()) == set(expected)
        found = weights[i] / weights[i].sum()
        for token, probability in expected.items():
            assert found[token].item() == pytest.approx(probability, rel=1e-5)
        assert chosen[i] in expected
        assert chosen[i] == tokens(logits[i : i + 1], [r])[0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "params",
    [
        {"top_k": 40}, {"top_k": 1}, {"top_k": 2000}, {"top_p": 0.9}, {"top_p": 0.3, "top_k": 100},
        {"min_p": 0.02}, {"top_p": 0.95, "min_p": 0.01, "top_k": 1500, "temperature": 1.7},
    ],
    ids=str,
)  # fmt: skip
def test_the_support_on_a_larger_vocabulary(params, device):
    vocab = 3001
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(4, vocab, generator=generator) * 2
    logits[1:] = logits[1:].bfloat16().float()  # many ties
    rows = [row(seed=i, **params) for i in range(4)]
    weights = log_weights(logits.to(device), rows).isfinite().cpu()
    for i, r in enumerate(rows):
        assert set(weights[i].nonzero().flatten().tolist()) == set(oracle(logits[i], r))


# ---- frequencies ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        {}, {"temperature": 0.7}, {"temperature": 3.0}, {"top_k": 5}, {"top_p": 0.8},
        {"min_p": 0.1}, {"top_k": 12, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.25},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("over", ["seeds", "positions"])
def test_frequencies_match_probabilities(params, over):
    draws = 8000
    logits = torch.randn(1, 24, generator=torch.Generator().manual_seed(1)) * 1.5
    history = [3, 3, 5, 7]
    if over == "seeds":
        rows = [row(seed=i, prompt=[1, 2], output=history, **params) for i in range(draws)]
    else:  # only the length of the output may differ, so it consists of one token
        outputs = [[3] * i for i in range(draws // 4)]
        rows = [row(seed=5, output=output, **params) for output in outputs]
        if rows[0].params.penalises:
            pytest.skip("each position has its own distribution")
    expected = oracle(logits[0], rows[0])
    counts = Counter(tokens(logits.expand(len(rows), -1), rows))
    assert set(counts) <= set(expected)
    common = [t for t in expected if expected[t] * len(rows) >= 5]  # as chi-square wants it
    observed = [counts[t] for t in common]
    ideal = [expected[t] * len(rows) for t in common]
    observed.append(len(rows) - sum(observed) + 5)  # the rest, with a little on both sides
    ideal.append(len(rows) - sum(ideal) + 5)
    assert surprise(observed, ideal) < 5


def test_rare_tokens_are_not_forgotten():
    """16384 tokens of probability 2**-15 each beside one of 1/2: coarse noise would be biased."""
    logits = torch.zeros(1, 16385)
    logits[0, 0] = math.log(16384)
    drawn = tokens(logits.expand(1024, -1), [row(seed=i) for i in range(1024)])
    assert abs(drawn.count(0) - 512) < 5 * math.sqrt(256)
    rest = torch.tensor([t for t in drawn if t]) - 1
    assert abs(surprise((rest // 1024).bincount(minlength=16), [len(rest) / 16] * 16)) < 5
    assert len(rest.unique()) > 0.95 * len(rest)


# ---- rows -------------------------------------------------------------------------------


def assorted(seed=0):
    """Rows of all kinds."""
    return [
        row(temperature=0),
        row(seed=seed + 1),
        row(seed=seed + 2, top_k=50, top_p=0.9, temperature=0.8),
        row(seed=seed + 3, top_p=0.7, output=[4, 4, 9]),
        row(seed=seed + 4, min_p=0.05, logprobs=3),
        row(temperature=0, repetition_penalty=1.2, prompt=[1, 2, 3], output=[7], logprobs=0),
        row(seed=seed + 5, frequency_penalty=0.5, output=[1, 1, 2], top_k=1200),
        row(seed=seed + 6, min_tokens=3, eos=(0,), stop_token_ids=[5], logprobs=20),
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("vocab", [1501, 4096])
def test_a_row_does_not_depend_on_the_batch(vocab, dtype, device):
    logits = (torch.randn(8, vocab) * 3).to(device, dtype)
    before = logits.clone()
    rows = assorted()
    together = sample(logits, rows)
    assert torch.equal(logits, before)
    for i, r in enumerate(rows):
        alone = sample(logits[i : i + 1], [r])[0]
        assert (together[i].token, len(together[i].top)) == (alone.token, len(alone.top))
        assert together[i].logprob == pytest.approx(alone.logprob, abs=1e-5)
    backwards = sample(logits.flip(0), rows[::-1])
    assert [r.token for r in backwards] == [r.token for r in together[::-1]]


def test_memory_layouts():
    logits = torch.randn(8, 1501) * 3
    wide = torch.full((8, 2000), math.nan)
    wide[:, :1501] = logits
    column_major = logits.t().contiguous().t()
    expected = tokens(logits, assorted())
    for same in (wide[:, :1501], column_major, logits.requires_grad_()):
        assert tokens(same, assorted()) == expected


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_greedy_takes_the_lowest_of_equal_ones(dtype, device):
    logits = torch.zeros(3, 5000)
    logits[0, [17, 18, 4999]] = 5
    logits[1, [4000, 4500]] = 1
    logits = logits.to(device, dtype)
    assert tokens(logits, [row(temperature=0)] * 3) == [17, 4000, 0]
    assert tokens(logits, [row(temperature=0, logprobs=1)] * 3) == [17, 4000, 0]


def test_top_k_keeps_exactly_k_of_equal_ones():
    for k, vocab in ((3, 20), (1100, 3000)):
        kept = log_weights(torch.zeros(1, vocab), [row(top_k=k)]).isfinite()[0]
        assert kept.nonzero().flatten().tolist() == list(range(k))


def test_top_p_is_the_smallest_set_that_reaches_it():
    halves = torch.tensor([[0.125, 0.5, 0.25, 0.125]]).log()
    cases = ((1e-9, [1]), (0.5, [1]), (0.51, [1, 2]), (0.75, [1, 2]), (0.76, [0, 1, 2]),
             (0.88, [0, 1, 2, 3]), (1, [0, 1, 2, 3]))  # fmt: skip
    for top_p, expected in cases:
        kept = log_weights(halves, [row(top_p=top_p)]).isfinite()[0]
        assert kept.nonzero().flatten().tolist() == expected
    equal = log_weights(torch.zeros(1, 10), [row(top_p=0.3)]).isfinite()[0]
    assert equal.nonzero().flatten().tolist() == [0, 1, 2]


def test_extreme_temperatures():
    logits = torch.randn(4, 1000) * 100
    logits[:, 0] = -math.inf
    for cold in (1e-6, 1e-45, 1e-300):
        rows = [row(seed=i, temperature=cold) for i in range(4)]
        assert tokens(logits, rows) == logits.argmax(-1).tolist()
    for hot in (1e6, 1e300):
        rows = [row(seed=i, temperature=hot) for i in range(2000)]
        drawn = torch.tensor(tokens(logits[:1].expand(2000, -1), rows))
        assert (drawn > 0).all()  # -inf stays impossible
        assert abs(surprise(((drawn - 1) * 10 // 999).bincount(minlength=10), [200] * 10)) < 5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("poison", ["nan", "inf", "all -inf", "all nan"])
def test_bad_rows_hurt_nobody_else(poison, device):
    logits = (torch.randn(8, 1501) * 3).to(device)
    good = sample(logits, assorted())
    for bad in range(8):
        spoilt = logits.clone()
        if poison.startswith("all"):
            spoilt[bad] = float(poison.removeprefix("all "))
        else:
            spoilt[bad, 77] = float(poison)
        results = sample(spoilt, assorted())
        assert results[bad] == Sampled(-1)
        for i in set(range(8)) - {bad}:
            assert results[i].token == good[i].token
        greedy = tokens(spoilt, [row(temperature=0)] * 8)
        assert [t == -1 for t in greedy] == [i == bad for i in range(8)]


def test_min_tokens_bans_what_ends_the_output():
    logits = torch.tensor([[5.0, 9.0, 8.0, 1.0]])
    for temperature in (0, 1e-3):
        ban = {"temperature": temperature, "min_tokens": 2, "stop_token_ids": [2, 999]}
        assert tokens(logits, [row(eos=(1,), output=[3], **ban)]) == [0]
        assert tokens(logits, [row(eos=(1,), output=[3, 3], **ban)]) == [1]
    everything = row(eos=(0, 1, 2, 3), min_tokens=1)
    assert sample(logits, [everything]) == [Sampled(-1)]


def test_penalties_by_hand():
    logits = torch.tensor([[2.0, -2.0, 1.0, 1.0]])

    def adjusted(**kwargs):
        z = log_weights(logits, [row(prompt=[0, 1, 777], output=[2, 2, 888], **kwargs)])[0]
        return (z - z[3] + 1).tolist()

    assert adjusted(repetition_penalty=2.0) == [1, -4, 0.5, 1]
    assert adjusted(presence_penalty=0.5) == [2, -2, 0.5, 1]
    assert adjusted(frequency_penalty=0.5) == [2, -2, 0, 1]
    assert adjusted(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=1) == [
        1, -4, -2, 1
    ]  # fmt: skip


def test_one_row_object_serves_a_growing_output():
    logits = torch.randn(1, 50)
    output = []
    live = row(seed=3, prompt=[1, 2], output=output, repetition_penalty=1.5, frequency_penalty=1)
    for _ in range(10):
        fresh = row(seed=3, prompt=[1, 2], output=tuple(output), repetition_penalty=1.5,
                    frequency_penalty=1)  # fmt: skip
        assert sample(logits, [live]) == sample(logits, [fresh])
        output.append(tokens(logits, [live])[0])


def test_logprobs_are_of_the_raw_logits():
    logits = torch.randn(3, 40) * 2
    rows = [
        row(temperature=0.3, logprobs=4, top_k=2, frequency_penalty=1, output=[1, 2]),
        row(temperature=0, logprobs=0),
        row(),
    ]
    raw = logits.double().log_softmax(-1)
    first, second, third = sample(logits, rows)
    assert first.logprob == pytest.approx(raw[0, first.token].item(), abs=1e-5)
    assert [t for t, _ in first.top] == raw[0].topk(4).indices.tolist()
    assert [v for _, v in first.top] == pytest.approx(raw[0].topk(4).values.tolist(), abs=1e-5)
    assert second.logprob == pytest.approx(raw[1].max().item(), abs=1e-5)
    assert (second.top, third.logprob, third.top) == ((), None, ())
    few = sample(torch.zeros(1, 3), [row(logprobs=20)])[0]
    assert [t for t, _ in few.top] == [0, 1, 2]


@pytest.mark.gpu
def test_the_host_waits_only_once():
    logits = torch.randn(8, 5000, device="cuda")
    sample(logits, assorted())
    waits = []
    original = torch.Tensor.tolist
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.MonkeyPatch.context() as patch:

            def tolist(self):
                torch.cuda.set_sync_debug_mode("default")
                waits.append(self.shape)
                result = original(self)
                torch.cuda.set_sync_debug_mode("error")
                return result

            patch.setattr(torch.Tensor, "tolist", tolist)
            sample(logits, assorted())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(waits) == 1


def test_bad_arguments():
    with pytest.raises(TypeError, match=r"logits are torch.int64; must be"):
        sample(torch.zeros(1, 3, dtype=torch.int64), [row()])
    with pytest.raises(TypeError, match=r"logits are list; must be"):
        sample([[1.0]], [row()])
    for shape in ((3,), (2, 3), (1, 0), (1, 1, 3)):
        with pytest.raises(ValueError, match=r"must be \[1, vocab\]"):
            sample(torch.zeros(shape), [row()])
    for seed in (1.0, True, 2**63, None):
        with pytest.raises(ValueError, match=r"seed is .*; must be an int"):
            row(seed=seed)
    assert sample(torch.zeros(0, 3), []) == []
