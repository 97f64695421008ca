"""Defaults, what is normalised, and that everything else is refused by name."""

import math
from dataclasses import FrozenInstanceError

import pytest

from gossamer.engine.sampling_params import SamplingParams


def test_defaults():
    p = SamplingParams()
    assert (p.temperature, p.top_k, p.top_p, p.min_p) == (1.0, 0, 1.0, 0.0)
    assert (p.max_tokens, p.min_tokens, p.n, p.logprobs, p.seed) == (256, 0, 1, None, None)
    assert (p.stop, p.stop_token_ids) == ((), ())
    assert not p.greedy
    assert not p.penalises


def test_normalised():
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert SamplingParams(stop_token_ids=[1, 2]).stop_token_ids == (1, 2)
    assert SamplingParams(top_k=-1).top_k == 0
    assert isinstance(SamplingParams(temperature=1).temperature, float)
    assert SamplingParams(stop=["a"]) == SamplingParams(stop="a")
    hash(SamplingParams(stop=["a"], stop_token_ids=[1]))


def test_properties():
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams(temperature=1e-9).greedy
    for name, value in (
        ("repetition_penalty", 1.1), ("presence_penalty", -1), ("frequency_penalty", 0.1),
    ):  # fmt: skip
        assert SamplingParams(**{name: value}).penalises


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0), ("temperature", 1e300), ("top_k", 1), ("top_p", 1e-9), ("min_p", 1),
        ("repetition_penalty", 1e-3), ("presence_penalty", -2), ("frequency_penalty", 2),
        ("seed", -(2**63)), ("seed", 2**63 - 1), ("max_tokens", None), ("max_tokens", 1),
        ("min_tokens", 256), ("logprobs", 0), ("logprobs", 20), ("n", 128),
    ],
)  # fmt: skip
def test_edges_of_the_ranges(name, value):
    assert getattr(SamplingParams(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("temperature", math.inf), ("temperature", 10**400),
        ("top_k", -2), ("top_p", 0), ("top_p", 1.01), ("min_p", -0.1), ("min_p", 1.1),
        ("repetition_penalty", 0), ("repetition_penalty", -1), ("repetition_penalty", math.inf),
        ("presence_penalty", 2.1), ("presence_penalty", -2.1), ("frequency_penalty", -math.inf),
        ("seed", 2**63), ("max_tokens", 0), ("min_tokens", -1), ("logprobs", -1), ("logprobs", 21),
        ("n", 0), ("n", 129), ("stop", ""), ("stop", ["a", ""]), ("stop_token_ids", [-1]),
        *((name, math.nan) for name in ("temperature", "top_p", "min_p", "repetition_penalty",
          "presence_penalty", "frequency_penalty")),
    ],
)  # fmt: skip
def test_out_of_range(name, value):
    with pytest.raises(ValueError, match=rf"^{name} is .*; must "):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("top_k", "min_tokens", "n", "seed", "max_tokens", "logprobs")
          for value in (True, 1.0, math.nan, "1")),
        *((name, value) for name in ("temperature", "top_p", "min_p", "repetition_penalty",
          "presence_penalty", "frequency_penalty") for value in (True, "1", None)),
        ("top_k", None), ("min_tokens", None), ("n", None),
        ("stop", None), ("stop", 1), ("stop", ["a", 1]), ("stop", b"a"), ("stop", {"a"}),
        ("stop_token_ids", 1), ("stop_token_ids", [True]), ("stop_token_ids", ["1"]),
        ("stop_token_ids", None), ("ignore_eos", 1), ("include_stop_str_in_output", None),
    ],
)  # fmt: skip
def test_wrong_types(name, value):
    with pytest.raises(TypeError, match=rf"^{name} is .*; must be "):
        SamplingParams(**{name: value})


def test_min_tokens_within_max_tokens():
    with pytest.raises(ValueError, match="min_tokens is 9; must be 0 to max_tokens, 8"):
        SamplingParams(min_tokens=9, max_tokens=8)
    assert SamplingParams(min_tokens=999, max_tokens=None).min_tokens == 999


def test_keywords_only_and_frozen():
    with pytest.raises(TypeError):
        SamplingParams(0.5)
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=0.5)
    with pytest.raises(FrozenInstanceError):
        SamplingParams().n = 2
