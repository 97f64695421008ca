"""Agreement: how long outputs stay those of the baseline, also when it ran long ago."""

from functools import partial

import pytest

from gossamer.evaluation.agreement import Agreement
from gossamer.evaluation.experiment import Experiment, evaluate, settings_of
from gossamer.evaluation.report import summarise
from gossamer.evaluation.store import Store
from gossamer.evaluation.suite import check_tasks
from tests.evaluation.fakes import FakeSubject, Words, run

TEXT = " ".join(f"w{'x' * i}" for i in range(60))
TASK = Agreement(TEXT, examples=10, prompt_tokens=8, tokens=4)
SAID = "one two three four"


def says(text):
    return lambda prompt: text


def compared(text, expected=SAID, task=TASK):
    """A score of a subject that says a text, when the baseline said another."""
    base = run(task, FakeSubject(says(expected), name="dense"))
    scores = list(run(task.against(base), FakeSubject(says(text), name="other")).values())
    assert len(scores) == len(base) == task.count
    assert all(score.value == 1 for score in base.values())
    return scores[0]


@pytest.mark.parametrize(
    ("text", "value", "differs"),
    [
        (SAID, 1, None),
        ("one two three 4", 0.75, 3),
        ("one 2 three four", 0.25, 1),  # what is equal again does not count
        ("1 two three four", 0, 0),
        ("one two", 0.5, 2),  # it ended early
        ("one two three four five", 0.8, 4),
        ("", 0, 0),
    ],
)
def test_the_share_before_the_first_difference(text, value, differs):
    score = compared(text)
    assert score.value == value
    assert score.meta["first_difference"] == differs
    assert score.meta["text"] == text
    assert score.meta["tokens"] == max(4, len(text.split()))


def test_nothing_equals_nothing():
    assert compared("", expected="").value == 1
    assert compared("a", expected="").value == 0


def test_prompts_come_from_all_over_the_text():
    prompts = TASK.prompts(Words())
    ids = Words()(TEXT)["input_ids"]
    assert len(prompts) == 10
    assert all(prompt == ids[int(at) : int(at) + 8] for at, prompt in prompts.items())
    assert [int(at) for at in prompts][::9] == [0, 47]
    assert TASK.prompts(Words()) == prompts


def open_subjects(answers):
    subjects = {name: FakeSubject(says(text), name=name) for name, text in answers.items()}
    return subjects, {name: partial(lambda s: s, subject) for name, subject in subjects.items()}


def test_a_later_run_compares_with_the_stored_baseline(tmp_path):
    """Dense is neither opened nor asked again, and a file that was cut short goes on."""
    path = tmp_path / "results.jsonl"
    experiment = Experiment("model", [TASK], setup={"dtype": "float32"})
    _, opened = open_subjects({"dense": SAID})
    evaluate(experiment, opened, Store(path))
    subjects, opened = open_subjects({"dense": "changed", "sparse": "one two 3"})
    results = evaluate(experiment, opened, Store(path))
    assert not subjects["dense"].batches
    dense, sparse = summarise(results)
    assert dense.value.value == 1
    assert sparse.value.value == 0.5
    assert sparse.change.value == -0.5

    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:15]))  # dense whole, and 4 scores of the other
    subjects, opened = open_subjects({"dense": "changed", "sparse": "one two 3"})
    again = evaluate(experiment, opened, Store(path))
    assert sum(map(len, subjects["sparse"].batches)) == 6
    assert [s.value.value for s in summarise(again)] == [1, 0.5]


def test_without_a_baseline_it_fails_and_says_why():
    subjects, opened = open_subjects({"sparse": SAID})
    (result,) = evaluate(Experiment("model", [TASK]), opened, Store())
    assert "agreement needs the outputs of dense, and has 0 of 10" in result.entry.error
    assert not subjects["sparse"].batches


def test_expected_outputs_are_no_settings():
    base = run(TASK, FakeSubject(says(SAID), name="dense"))
    assert settings_of(TASK.against(base)) == settings_of(TASK)
    assert TEXT not in settings_of(TASK).values()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Agreement(TEXT, examples=0), "examples is 0"),
        (lambda: Agreement(TEXT, tokens=0), "tokens is 0; must be an integer of at least 1"),
        (lambda: Agreement(TEXT).prompts(Words()), "text has 60 tokens; must have at least 611"),
        (lambda: TASK.prompts(None), "no tokenizer"),
        (
            lambda: check_tasks([TASK], Words(), 11),
            r"agreement takes 8 \+ 4 tokens; must be at most",
        ),
    ],
)
def test_wrong_settings(make, words):
    with pytest.raises(ValueError, match=words):
        make()
