"""PagePool: who has which page, and what can still be found."""

import random

import pytest
import torch

from gossamer.kv.pages import OutOfPagesError, PagePool


def names(count: int) -> list[bytes]:
    return [f"block {i}".encode() for i in range(count)]


def test_every_page_is_given_once():
    pool = PagePool(5)
    assert sorted(pool.take() for _ in range(5)) == [0, 1, 2, 3, 4]
    assert (pool.in_use, pool.available) == (5, 0)
    with pytest.raises(OutOfPagesError, match="all 5 pages are in use"):
        pool.take()


def test_a_page_returns_with_its_last_reference():
    pool = PagePool(1)
    page = pool.take()
    assert pool.share(page) == page
    pool.release(page)
    assert (pool.in_use, pool.available) == (1, 0)
    pool.release(page)
    assert (pool.in_use, pool.available) == (0, 1)
    assert pool.take() == page


def test_releasing_too_often_is_noticed():
    pool = PagePool(2)
    page = pool.take()
    pool.release(page)
    with pytest.raises(AssertionError, match=f"page {page} is released more often"):
        pool.release(page)
    with pytest.raises(AssertionError, match="released more often"):
        pool.release(1 - page)
    assert pool.available == 2


def test_idle_pages_are_found_and_shared():
    pool, [name] = PagePool(2), names(1)
    page = pool.take()
    assert pool.find(name) is None
    pool.name(page, name)
    assert pool.find(name) == page  # in use
    pool.release(page)
    assert pool.find(name) == page  # idle
    assert pool.available == 2
    pool.share(page)
    assert (pool.in_use, pool.available) == (1, 1)
    assert pool.take() != page
    with pytest.raises(OutOfPagesError):
        pool.take()


def test_a_page_without_name_is_forgotten_at_once():
    pool = PagePool(1)
    pool.release(pool.take())
    assert pool.take() == 0
    pool.name(0, b"late")
    assert pool.find(b"late") == 0


def test_free_pages_go_first_then_those_idle_for_longest():
    pool, known = PagePool(4), names(3)
    pages = [pool.take() for _ in range(3)]
    for page, name in zip(pages, known, strict=True):
        pool.name(page, name)
    for page in (pages[1], pages[0], pages[2]):
        pool.release(page)
    pool.release(pool.share(pages[1]))  # used again, so it is the youngest
    assert pool.take() not in pages
    assert [pool.take() for _ in range(3)] == [pages[0], pages[2], pages[1]]
    assert [pool.find(name) for name in known] == [None, None, None]


def test_a_page_that_is_taken_can_get_another_name():
    pool, [old, new] = PagePool(1), names(2)
    page = pool.take()
    pool.name(page, old)
    pool.release(page)
    assert pool.take() == page
    pool.name(page, new)
    assert (pool.find(old), pool.find(new)) == (None, page)


def test_the_first_page_of_a_name_keeps_it():
    """The other holds the same, and is free when nobody uses it."""
    pool, [name, other] = PagePool(2), names(2)
    first, second = pool.take(), pool.take()
    pool.name(first, name)
    pool.name(second, name)
    pool.name(first, other)
    assert pool.find(name) == first
    assert pool.find(other) is None
    pool.release(first)
    pool.release(second)
    assert pool.take() == second  # free, so before the idle one
    assert pool.find(name) == first


def test_an_empty_pool():
    pool = PagePool(0)
    assert (pool.available, pool.in_use, pool.find(b"x")) == (0, 0, None)
    with pytest.raises(OutOfPagesError, match="all 0 pages"):
        pool.take()


def test_random_use_against_a_model():
    """References in a dictionary, idle pages in a list: the same answers after any calls."""
    rng = random.Random(torch.initial_seed())
    pool, references, named = PagePool(6), {}, {}
    idle: list[int] = []
    for step in range(3000):
        free = [p for p in range(6) if p not in references and p not in idle]
        action = rng.choice(["take", "release", "share", "name", "find"])
        if action == "take" and (free or idle):
            page = pool.take()
            if free:
                assert page in free
            else:
                assert page == idle.pop(0)
                del named[page]
            references[page] = 1
        elif action == "release" and references:
            page = rng.choice(sorted(references))
            pool.release(page)
            references[page] -= 1
            if not references[page]:
                del references[page]
                idle += [page] if page in named else []
        elif action == "share" and (named or references):
            page = rng.choice(sorted({*named, *references}))
            pool.share(page)
            idle = [p for p in idle if p != page]
            references[page] = references.get(page, 0) + 1
        elif action == "name" and references:
            page, name = rng.choice(sorted(references)), str(rng.randrange(step + 1)).encode()
            pool.name(page, name)
            if page not in named and name not in named.values():
                named[page] = name
        assert (pool.in_use, pool.idle) == (len(references), len(idle))
        assert all(pool.find(name) == page for page, name in named.items())
        assert pool.find(b"never") is None
