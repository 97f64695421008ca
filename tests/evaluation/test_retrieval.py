"""Lookup, needles and copying: what is asked, and what counts as an answer."""

import re

import pytest

from gossamer.evaluation.filler import NAMES, NOUNS
from gossamer.evaluation.retrieval import Copying, Lookup, Needle
from gossamer.evaluation.tasks import Example, first_line, first_number
from tests.evaluation.fakes import FakeSubject, Words, run

NAME = re.compile(r"The number of (\w+) is$")


def knows_everything(prompt):
    """Reads the record of the name at the end of the prompt."""
    name = NAME.search(prompt)[1]
    number = re.search(rf"The number of {name} is (\d+)\.", prompt)[1]
    return f" {number}.\nThe number of"


def reads_lists(prompt):
    owner = prompt.splitlines()[-1].removesuffix(":")
    return re.search(rf"^{owner}: (.*)$", prompt, re.M)[1] + "\nNext: one"


TASKS = {
    "lookup": (Lookup(examples=23), knows_everything),
    "needle": (Needle(lengths=(300, 400), rounds=2), knows_everything),
    "copying": (Copying(examples=23), reads_lists),
}


@pytest.fixture(params=TASKS)
def case(request):
    return TASKS[request.param]


def test_who_reads_the_prompt_is_right(case):
    task, answer = case
    scores = run(task, FakeSubject(answer))
    assert len(scores) == task.count
    assert all(score.value == 1 for score in scores.values())
    assert all(score.value == 0 for score in run(task, FakeSubject()).values())


def test_the_same_seed_the_same_examples(case):
    task, answer = case
    batches = []
    for seed in (0, 0, 1):
        subject = FakeSubject(answer)
        run(type(task)(**{**vars(task), "seed": seed}), subject)
        batches.append(subject.batches)
    assert batches[0] == batches[1] != batches[2]


def test_done_examples_are_not_asked_again(case):
    task, answer = case
    scores = run(task, FakeSubject(answer))
    done = list(scores)[::2]
    subject = FakeSubject(answer)
    assert set(run(task, subject, done)) == set(scores) - set(done)
    assert sum(map(len, subject.batches)) == len(scores) - len(done)
    assert run(task, subject, scores) == {}


def test_questions_of_a_document_begin_alike(case):
    """The first of them alone, so that the prefix cache has the document for the others."""
    task, answer = case
    subject = FakeSubject(answer)
    run(task, subject)
    for first, others in zip(subject.batches[::2], subject.batches[1::2], strict=True):
        assert len(first) == 1
        start = first[0].rsplit("\n", 1)[0]
        assert all(prompt.startswith(start) for prompt in others)


def test_lookup_has_records_then_filler_then_shots():
    task = Lookup(examples=1, records=30, filler_tokens=200, shots=4)
    ((example,),) = list(task.documents(Words()))
    records, filler, questions = example.prompt.split("\n\n")
    assert len(records.splitlines()) == len(set(records.splitlines())) == 30
    assert 180 < len(filler.split()) <= 200
    assert not re.search(r"\d", filler)
    *shots, question = questions.splitlines()
    assert len(shots) == 4
    assert set(shots) < set(records.splitlines())
    assert f"{question} {example.target[0]}." in set(records.splitlines()) - set(shots)


def test_needles_lie_where_they_should():
    task = Needle(lengths=(500,), depths=(0.0, 0.3, 1.0), rounds=1)
    (examples,) = list(task.documents(Words()))
    hay = examples[0].prompt.split("\n\n")[0]
    assert 460 < len(hay.split()) <= 500
    for example in examples:
        place = hay.index(f" {example.target[0]}.") / len(hay)
        assert place == pytest.approx(example.meta["depth"], abs=0.1)


def test_filler_of_a_text():
    text = "One here. Two there! Three 3 nowhere? " * 20
    ((example,),) = list(Lookup(examples=1, filler_tokens=50, text=text).documents(Words()))
    assert "Two there! Three 3 nowhere?" in example.prompt
    with pytest.raises(ValueError, match="filler text is empty"):
        list(Lookup(examples=1, text=" \n ").documents(Words()))


def test_what_counts_as_an_answer():
    example = Example("a", "", ("42",), 4)
    for text, right in ((" 42.", 1), ("is 42 or 17", 1), ("421", 0), ("17, 42", 0), ("", 0)):
        assert first_number(text, example) == right
    example = Example("a", "", ("a b c",), 4)
    for text, right in ((" a  b c\nd", 1), ("\na b c", 1), ("a b", 0), ("a b c d", 0), ("", 0)):
        assert first_line(text, example) == right


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Lookup(records=10), "records is 10; must be at least shots"),
        (lambda: Lookup(examples=0), "examples is 0"),
        (lambda: Lookup(digits=1), "digits is 1, too few for 40"),
        (lambda: Needle(lengths=()), "lengths is"),
        (lambda: Needle(depths=(0.5, 0.5)), "depths is"),
        (lambda: Needle(depths=(0.5, 1.5)), "depths is"),
        (lambda: Needle(rounds=0), "rounds is 0"),
        (lambda: Copying(shots=12), "shots is 12"),
        (lambda: Copying(words=999), "words is 999"),
        (lambda: list(Lookup(records=999, examples=1).documents(Words())), "digits|names is 999"),
        (lambda: list(Lookup().documents(None)), "no tokenizer"),
    ],
)
def test_wrong_settings(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_words_are_different():
    assert len(set(NAMES)) == len(NAMES) >= 80
    assert len(set(NOUNS)) == len(NOUNS) >= 100
