"""Which replica a prompt is sent to, without any replica."""

import random

from hypothesis import given
from hypothesis import strategies as st

from gossamer.cluster.prefixes import PrefixIndex, block_names, choose

RULE = {"slack": 2, "share": 0.25}
LOADS = {"a": 0, "b": 0, "c": 0}


def ids(start, count):
    return tuple(range(start, start + count))


def test_names_are_of_all_tokens_before():
    long, other = block_names(ids(0, 100)), block_names((9, *ids(1, 99)))
    assert len(long) == 3
    assert block_names(ids(0, 64)) == long[:2]
    assert not set(long) & set(other)
    assert block_names(ids(0, 31)) == []


def test_the_replica_with_most_of_the_prompt_is_taken():
    index = PrefixIndex(1000)
    index.add(block_names(ids(0, 96)), "a", LOADS)
    index.add(block_names((*ids(0, 64), *ids(500, 96))), "b", LOADS)
    prompt = (*ids(0, 64), *ids(500, 64))
    matches = index.matches(block_names(prompt))
    assert matches == {"a": 2, "b": 4}
    assert choose(prompt, matches, LOADS, **RULE) == "b"
    assert choose(prompt, matches, {"a": 0, "b": 2, "c": 0}, **RULE) == "b"
    assert choose(prompt, matches, {"a": 0, "b": 3, "c": 0}, **RULE) == "a"  # b is too busy
    assert choose(prompt, matches, {"a": 4, "b": 4, "c": 0}, **RULE) == "c"
    assert choose(prompt, matches, {"a": 0, "c": 1}, **RULE) == "a"  # b is gone


def test_a_prefix_that_several_have_stays_with_one_of_them():
    prompt, matches = ids(0, 96), {"a": 3, "b": 3, "c": 3}
    [stays] = {choose(prompt, matches, {**LOADS, name: 1}, **RULE) for name in LOADS}
    assert choose(prompt, matches, {**LOADS, stays: 3}, **RULE) != stays


def test_a_short_match_does_not_hold_a_prompt():
    prompt = ids(0, 320)
    assert choose(prompt, {"b": 1}, {"a": 0, "b": 1}, **RULE) == "a"
    assert choose(prompt, {"b": 3}, {"a": 0, "b": 1}, **RULE) == "b"


def test_unknown_prompts_are_spread_and_the_same_for_every_router():
    prompts = [tuple(random.choices(range(1000), k=40)) for _ in range(300)]
    chosen = [choose(prompt, {}, LOADS, **RULE) for prompt in prompts]
    other = dict(reversed(LOADS.items()))
    assert chosen == [choose(prompt, {}, other, **RULE) for prompt in prompts]
    assert all(chosen.count(name) > 50 for name in LOADS)  # 100 each, 8 standard deviations


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 200), st.sampled_from("abc"))))
def test_what_is_remembered_is_bounded_and_true(prompts):
    index, had = PrefixIndex(4), []
    for start, count, replica in prompts:
        names = block_names(ids(start, count))
        index.add(names, replica, LOADS)
        had.append((names, replica))
        for seen, _ in had:
            for who, blocks in index.matches(seen).items():
                assert any(r == who and n[:blocks] == seen[:blocks] for n, r in had)
    distinct = {name for names, _ in had for name in names}
    assert sum(bool(index.matches([name])) for name in distinct) <= 4


def test_who_is_gone_is_forgotten():
    index, names = PrefixIndex(10), block_names(ids(0, 64))
    index.add(names, "a", LOADS)
    index.add(names, "b", {"b": 0, "c": 0})
    assert index.matches(names) == {"b": 2}


def test_the_least_recently_used_are_forgotten_ends_first():
    index = PrefixIndex(4)
    first, second = block_names(ids(0, 96)), block_names(ids(1000, 64))
    index.add(first, "a", LOADS)
    index.add(second, "b", LOADS)
    assert index.matches(first) == {"a": 2}
    assert index.matches(second) == {"b": 2}


def test_adapters_share_no_prefixes():
    ids = range(100)
    assert block_names(ids, "a") != block_names(ids)
    assert block_names(ids, "a") == block_names(ids, "a")
