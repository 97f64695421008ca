"""Plans on disk: found again by another process, safe against others, damage and old versions."""

import json
import logging
import multiprocessing
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from gossamer.fusion.cache import PlanCache, Subject
from gossamer.fusion.plan import Plan
from gossamer.fusion.signature import mask_signature
from gossamer.masks import Causal, DenseMask, DocumentIds, Longformer, Sliding, per_head

SUBJECT = Subject("graph", "mask", "eager", "int64[2, 24]", {"device": "cpu", "torch": "2"})
PLAN = Plan(5, 0b1010, {1: "triton"}, {1: 3.5})
FACTS = {"us": 1.5}


@pytest.fixture
def cache(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "gossamer.fusion")
    return PlanCache(tmp_path / "deep" / "plans.sqlite")


def test_round_trip(cache, caplog):
    assert cache.get(SUBJECT) is None
    assert cache.put(SUBJECT, PLAN, FACTS)
    found = cache.get(SUBJECT)
    assert (found, found.kernels, found.measured) == (PLAN, PLAN.kernels, PLAN.measured)
    assert cache.put(SUBJECT, Plan.unfused(5), FACTS)
    assert cache.get(SUBJECT) == Plan.unfused(5)
    (entry,) = cache.entries()
    assert (entry.shapes, entry.facts) == (SUBJECT.shapes, FACTS)
    for other in ({"graph": "g"}, {"mask": ""}, {"rest": "inductor"}):
        assert cache.get(replace(SUBJECT, **other)) is None
    assert not caplog.records


def test_other_versions_are_stale(cache, caplog):
    cache.put(SUBJECT, PLAN, FACTS)
    assert cache.get(replace(SUBJECT, machine={"device": "cpu", "torch": "3"})) is None
    assert "it was measured with device cpu, torch 2" in caplog.text


def test_a_damaged_file_is_no_plan(cache, caplog):
    cache.path.parent.mkdir()
    cache.path.write_bytes(b"no database at all" * 100)
    assert cache.get(SUBJECT) is None
    assert "cannot be read" in caplog.text
    assert cache.put(SUBJECT, PLAN, FACTS)
    assert cache.get(SUBJECT) == PLAN
    assert "was no database" in caplog.text


@pytest.mark.parametrize(
    "damage",
    [
        "update plans set plan = 'no json'",
        "update plans set plan = '[1]'",
        "update plans set format = 99",
        """update plans set plan = json_set(plan, '$.plan', 'ffff')""",
        """update plans set plan = json_remove(plan, '$.kernels')""",
    ],
)
def test_a_damaged_entry_is_no_plan(cache, caplog, damage):
    cache.put(SUBJECT, PLAN, FACTS)
    with sqlite3.connect(cache.path) as connection:
        connection.execute(damage)
    assert cache.get(SUBJECT) is None
    assert cache.entries() == []
    assert "an entry is damaged and ignored" in caplog.text


def test_a_truncated_file_is_no_plan(cache, caplog):
    cache.put(SUBJECT, PLAN, FACTS)
    cache.path.write_bytes(cache.path.read_bytes()[:5000])
    assert cache.get(SUBJECT) is None
    assert "tuned plans are not used" in caplog.text


def test_concurrent_writers(cache):
    """Threads here and processes besides: everything is there afterwards."""
    fork = multiprocessing.get_context("fork")
    others = [fork.Process(target=write, args=(cache, f"process {i}")) for i in range(2)]
    for other in others:
        other.start()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda i: write(cache, f"thread {i}"), range(3)))
    for other in others:
        other.join(60)
        assert other.exitcode == 0
    assert len(cache.entries()) == 5 * 15


def write(cache, name):
    for i in range(15):
        assert cache.put(replace(SUBJECT, graph=f"{name} {i}"), PLAN, FACTS)


def test_signatures_of_masks():
    tensor = torch.rand(8, 8) > 0.5
    masks = [
        None,
        Causal(),
        Sliding(3, 0),
        Sliding(3, 0) & Causal(),
        Longformer(3, [0]),
        Longformer(3, [1]),
        per_head([Causal(), Sliding(1, 1)]),
        DenseMask(tensor),
        DenseMask(~tensor),
        DocumentIds(torch.tensor([0, 0, 1])),
    ]
    found = [mask_signature(mask) for mask in masks]
    assert len(set(found)) == len(masks)
    assert mask_signature(DenseMask(tensor.clone())) == mask_signature(DenseMask(tensor))
    assert json.dumps(found)
