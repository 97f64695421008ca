"""The planner against every committed run of the engine that its constants describe."""

import pytest

from benchmarks.reports.engine_points import LOAD, PROMPTS, STEP, points
from benchmarks.reports.gpus import FITTED, fitted, later
from benchmarks.reports.planning import current
from gossamer.planning.gpu import load_gpu

GPU = load_gpu("h200")
CURRENT = [p for p in points() if current(p)]
HELD_OUT = [p for p in CURRENT if not fitted(p)]
LATER = [p for p in points() if later(p)]


def named(point):
    return f"{point.what}, {point.place}, {point.model}, {point.kv}"


def test_most_runs_are_held_out():
    """Of other contexts and batches than those that constants are fitted to."""
    assert len(CURRENT) == len(HELD_OUT) + len(FITTED)
    assert len(HELD_OUT) >= 5
    assert {p.what for p in HELD_OUT} == {STEP, PROMPTS, LOAD}
    assert {"32 x 8,000", "mixed"} <= {p.place for p in HELD_OUT}


def test_others_were_measured_after_the_planner_was_written():
    assert {"64 x 4,000", "chat"} <= {p.place for p in LATER}
    assert {p.kv for p in LATER} > {"dense"}


@pytest.mark.parametrize("point", [*CURRENT, *LATER], ids=named)
def test_within_a_fifth(point):
    assert point.predicted(GPU) == pytest.approx(point.seconds, rel=0.2)
