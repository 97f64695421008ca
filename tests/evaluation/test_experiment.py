"""Runs and their results file: what is kept, what is skipped, what fails."""

import json
from functools import partial
from pathlib import Path

import pytest

from gossamer.bench.record import revision
from gossamer.evaluation.experiment import Experiment, evaluate, settings_of
from gossamer.evaluation.store import Point, Store
from gossamer.evaluation.tasks import Score
from tests.evaluation.fakes import Counting, FakeSubject

POINT = Point("task", "accuracy", {"n": 1}, "model", "dense", 0, {"dtype": "float32"})


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def dies(prompt, at):
    if prompt.endswith(at):
        raise KeyboardInterrupt
    return ""


def breaks(prompt):
    raise RuntimeError("no\n memory")


# ---- the file ---------------------------------------------------------------------------------


def test_points_come_back(tmp_path):
    store = Store(tmp_path / "folder" / "results.jsonl")
    store.add_score(POINT, Score("a", 0.5, 2.0, {"x": [1, 2]}), share=0.5, bytes_per_token=10)
    store.add_end(POINT, seconds=1.5)
    for known in (store, Store(store.path)):
        entry = known.entry(POINT)
        assert entry.scores == {"a": Score("a", 0.5, 2.0, {"x": [1, 2]})}
        assert (entry.finished, entry.error, entry.seconds) == (True, None, 1.5)
        assert (entry.share, entry.bytes_per_token) == (0.5, 10)


def test_every_difference_is_another_point():
    others = [
        Point("task", "accuracy", {"n": 2}, "model", "dense", 0, {"dtype": "float32"}),
        Point("task", "accuracy", {"n": 1}, "other", "dense", 0, {"dtype": "float32"}),
        Point("task", "accuracy", {"n": 1}, "model", "sparse", 0, {"dtype": "float32"}),
        Point("task", "accuracy", {"n": 1}, "model", "dense", 1, {"dtype": "float32"}),
        Point("task", "accuracy", {"n": 1}, "model", "dense", 0, {"dtype": "float16"}),
    ]
    assert len({POINT.key, *(point.key for point in others)}) == 6
    assert Point(**vars(POINT)).key == POINT.key
    named = Point("t", "nll", {"file": Path("a")}, "m", "s", 0)
    assert named.key == Point("t", "nll", {"file": "a"}, "m", "s", 0).key
    with pytest.raises(TypeError, match="a setting is"):
        _ = Point("t", "nll", {"f": breaks}, "m", "s", 0).key


def test_half_a_line_is_dropped(tmp_path):
    path = tmp_path / "results.jsonl"
    store = Store(path)
    store.add_score(POINT, Score("a", 1.0))
    store.add_score(POINT, Score("b", 1.0))
    whole = path.read_bytes()
    for cut in (1, 5, 40, len(whole) // 2 - 1):
        path.write_bytes(whole[:-cut])
        again = Store(path)
        assert list(again.entry(POINT).scores) == ["a"]
        again.add_score(POINT, Score("b", 1.0))
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "content", ["some text", "some text\n", '{"a": 1}\n', '{"key": "x", "status": "ok"}\n', "[]\n"]
)
def test_other_files_are_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"notes\.txt"):
        Store(path)
    assert path.read_text() == content


# ---- runs -------------------------------------------------------------------------------------


def test_lines_say_everything(tmp_path):
    store = Store(tmp_path / "r.jsonl")
    experiment = Experiment("model", [Counting()], seed=3, setup={"dtype": "float32"})
    (result,) = evaluate(experiment, {"fake": FakeSubject}, store)
    assert [s.value for s in result.entry.scores.values()] == [1, 1, 0, 0]
    lines = lines_of(store.path)
    assert [line["status"] for line in lines] == ["ok"] * 4 + ["finished"]
    for line in lines:
        assert (line["task"], line["subject"], line["model"]) == ("counting", "fake", "model")
        assert line["settings"] == {"examples": 4, "right": 2, "name": "counting"}
        assert (line["seed"], line["setup"]) == (3, {"dtype": "float32"})
        assert (line["share"], line["bytes_per_token"]) == (1.0, 100.0)
        assert line["revision"] == revision()
        assert {"gossamer", "torch"} <= set(line["versions"])
        assert line["device"]


def test_a_crash_loses_no_score(tmp_path):
    path = tmp_path / "r.jsonl"
    experiment = Experiment("model", [Counting(name="a"), Counting(name="b")])
    subject = FakeSubject(partial(dies, at="b 2"))
    with pytest.raises(KeyboardInterrupt):
        evaluate(experiment, {"fake": lambda: subject}, Store(path))
    assert len(lines_of(path)) == 5 + 2  # all of a and its end, two of b

    again = FakeSubject()
    results = evaluate(experiment, {"fake": lambda: again}, Store(path))
    assert again.batches == [["b 2"], ["b 3"]]
    assert [len(r.entry.scores) for r in results] == [4, 4]
    assert all(r.entry.finished for r in results)


def test_nothing_left_to_do_loads_nothing(tmp_path, capsys):
    path = tmp_path / "r.jsonl"
    first = evaluate(Experiment("model", [Counting()]), {"fake": FakeSubject}, Store(path))
    second = evaluate(
        Experiment("model", [Counting()]), {"fake": breaks}, Store(path), progress=True
    )
    assert first == second
    assert "counting, fake: in the results already" in capsys.readouterr().err
    more = Experiment("model", [Counting(examples=6)])  # other settings, another point
    (result,) = evaluate(more, {"fake": FakeSubject}, Store(path))
    assert len(result.entry.scores) == 6


def test_a_failure_is_recorded_and_the_others_go_on(tmp_path, capsys):
    path = tmp_path / "r.jsonl"
    experiment = Experiment("model", [Counting(name="a"), Counting(name="b")])

    def fails(prompt):
        return breaks(prompt) if prompt == "a 1" else ""

    subjects = {"bad": lambda: FakeSubject(fails), "good": FakeSubject, "never": lambda: breaks("")}
    results = evaluate(experiment, subjects, Store(path), progress=True)
    states = {(r.subject, r.task): (len(r.entry.scores), r.entry.error) for r in results}
    words = "RuntimeError: no memory"
    assert states == {
        ("bad", "a"): (1, words),
        ("bad", "b"): (4, None),
        ("good", "a"): (4, None),
        ("good", "b"): (4, None),
        ("never", "a"): (0, words),
        ("never", "b"): (0, words),
    }
    assert f"a, bad: failed: {words}" in capsys.readouterr().err
    results = evaluate(experiment, {"bad": FakeSubject}, Store(path))  # and is tried again
    assert [(len(r.entry.scores), r.entry.error) for r in results] == [(4, None)] * 2


def test_without_a_file():
    results = evaluate(Experiment("model", [Counting()]), {"fake": FakeSubject}, Store())
    assert results[0].entry.finished


def test_plans_have_each_task_once():
    for tasks in ([], [Counting(), Counting(examples=3)]):
        with pytest.raises(ValueError, match="must be at least one, each once"):
            Experiment("model", tasks)


def test_settings_of_a_task_that_has_none():
    class Bare:
        name, kind = "bare", "nll"

    assert settings_of(Bare()) == {}


def test_subjects_can_have_setups_of_their_own():
    experiment = Experiment(
        "model", [Counting()], setup={"dtype": "x"}, setups={"s": {"calibration": "c"}}
    )
    assert experiment.point(Counting(), "s").setup == {"dtype": "x", "calibration": "c"}
    assert experiment.point(Counting(), "dense").setup == {"dtype": "x"}
