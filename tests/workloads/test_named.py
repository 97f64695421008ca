"""Workloads by name, and the requests that are drawn from them."""

import pytest

from gossamer.workloads.named import WORKLOADS, numbers_of
from gossamer.workloads.requests import RequestMix


@pytest.mark.parametrize("name", WORKLOADS)
def test_requests_keep_the_lengths_of_the_workload(name):
    mix = WORKLOADS[name]
    drawn = mix.draw(50, seed=0)
    assert len(drawn) == mix.requests
    lengths = [len(request.ids) - mix.prefix for request in drawn]
    assert mix.inputs[0] <= min(lengths) <= max(lengths) <= mix.inputs[1]
    assert {mix.outputs[0] <= request.output <= mix.outputs[1] for request in drawn} == {True}
    assert max(len(r.ids) + r.output for r in drawn) <= mix.longest
    assert len({request.ids[: mix.prefix] for request in drawn}) == (mix.prefixes)


def test_options_override_a_workload():
    found = RequestMix(**numbers_of("chat", {"prefix": 1}, {"requests": 3, "inputs": (7, 7)}))
    chat = WORKLOADS["chat"]
    assert (found.requests, found.inputs) == (3, (7, 7))
    assert (found.outputs, found.prefix, found.prefixes) == (chat.outputs, 1000, 8)


def test_without_a_name_there_are_defaults():
    defaults = {"requests": 5, "inputs": (1, 2)}
    assert numbers_of(None, defaults, {"inputs": (3, 4)}) == {"requests": 5, "inputs": (3, 4)}


def test_an_unknown_name():
    with pytest.raises(ValueError, match="'tiny'; must be one of mixed, small, chat, long"):
        numbers_of("tiny", {}, {})


def test_lengths_depend_on_the_seed_alone():
    mix = RequestMix(requests=40, inputs=(5, 60), outputs=(1, 9), prefix=4, prefixes=3)

    def lengths(requests):
        return [(len(request.ids), request.output) for request in requests]

    drawn, other = mix.draw(50, seed=1), mix.draw(50, seed=1, variation="again")
    assert lengths(drawn) == lengths(other) == lengths(mix.draw(7, seed=1))
    assert lengths(drawn) != lengths(mix.draw(50, seed=2))
    assert not {r.ids[:8] for r in drawn} & {r.ids[:8] for r in other}


@pytest.mark.parametrize("name", ["requests", "prefix", "prefixes"])
def test_numbers_out_of_range(name):
    with pytest.raises(ValueError, match=f"{name} is -1; must be at least"):
        RequestMix(**{"requests": 1, "inputs": (1, 1), "outputs": (1, 1), name: -1})
