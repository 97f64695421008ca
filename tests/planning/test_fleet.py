"""How many GPUs, and why not."""

import pytest

from gossamer.planning.fleet import CACHES, Fleet, Impossible, fleet, fleets, replicas_needed
from gossamer.planning.gpu import load_gpu
from gossamer.planning.memory import Limits
from gossamer.planning.table import cells, facts, markdown, notes
from gossamer.workloads.bounds import Bounds
from tests.planning.given import config, demand


def test_a_rate_is_divided_among_replicas():
    assert [replicas_needed(rate, 2.5) for rate in (0.1, 2.5, 2.6, 25, 26)] == [1, 1, 2, 10, 11]
    wanted = demand(30000, 256, rate=20.0, utilisation=0.5)
    found = fleet(wanted, "dense")
    assert found.state.rate == pytest.approx(20 / found.replicas)
    assert found.state.rate <= 0.5 * found.most < 20 / (found.replicas - 1)


def test_smaller_caches_need_no_more_gpus():
    wanted = demand(30000, 1000, rate=100.0)
    counts = [fleet(wanted, spec).gpus for spec in CACHES]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 1.5 * counts[-1]


def test_ranks_are_those_of_the_fewest_gpus():
    large = {"model": config("llama-3-70b"), "rate": 20.0}
    found = fleet(demand(8000, **large), "dense")
    given = [fleet(demand(8000, ranks=n, **large), "dense").gpus for n in (2, 4, 8)]
    assert found.gpus == min(given)
    assert fleet(demand(8000, bounds=Bounds(tpot=20), **large), "dense").ranks > 2


def test_ranks_that_do_not_do_name_those_that_do():
    with pytest.raises(ValueError, match=r"tensor_parallel_size can be 2 or 4 or 8$"):
        fleet(demand(model=config("llama-3-70b"), ranks=1), "dense")
    with pytest.raises(
        ValueError, match="must be one of 1, 2, 4, 8, 16, 32; tensor_parallel_size can be"
    ):
        fleet(demand(ranks=3), "dense")


def test_a_cache_that_is_impossible_does_not_hide_the_others():
    limits = Limits(kv_memory=2_000_000_000)
    rows = fleets(demand(30000, 256, limits=limits), ["dense", "coded:23.5%"])
    assert isinstance(rows[0], Impossible)
    assert isinstance(rows[1], Fleet)
    assert "a sequence of 30,256 tokens takes 4.0 GB" in rows[0].reason
    with pytest.raises(ValueError, match=r"^dense: a sequence of"):
        fleets(demand(30000, 256, limits=limits), ["dense"])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("auto", "must be a KV spec"),
        ("coded:99%", "must be 10% to 52%"),
        ("dense:fp32", "has no tuned kernel"),
        ("nonsense", "is not key=value"),
    ],
)
def test_specs_that_cannot_be_planned(spec, message):
    with pytest.raises(ValueError, match=message):
        fleet(demand(), spec)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": 0.0}, "rate is 0.0"),
        ({"rate": float("nan")}, "rate is nan"),
        ({"utilisation": 1.1}, "utilisation is 1.1"),
        ({"ranks": 0}, "tensor_parallel_size is 0"),
        ({"prompt": 200_000}, "must be at most 131,072"),
    ],
)
def test_demands_that_are_none(given, message):
    with pytest.raises(ValueError, match=message):
        demand(**given)


def test_estimates_are_marked():
    wanted = demand()
    rows = fleets(wanted, ["dense", "coded:30%"])
    assert [cells(row)[0] for row in rows] == ["dense", "~coded:30%"]
    assert any(note.startswith("~: nobody measured") for note in notes(wanted, rows))
    assert [found["measured"] for found in facts(wanted, rows)["caches"]] == [True, False]
    assert markdown(rows).splitlines()[3].startswith("| `~coded:30%` | ")


def test_scaled_gpus_and_links_are_told():
    whole = load_gpu("h200")
    wanted = demand(gpu=whole.scaled("Other", whole.sheet), ranks=2)
    told = "\n".join(notes(wanted, fleets(wanted, ["dense"])))
    assert "Other: scaled from NVIDIA H200 by data sheets, not measured" in told
    assert "links by their data sheet, not measured" in told
    alone = demand(ranks=1)
    told = "\n".join(notes(alone, fleets(alone, ["dense"])))
    assert "not measured" not in told
