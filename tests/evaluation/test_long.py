"""Long tasks: what lies in a document, how long it is, and what counts as an answer."""

import re
from collections import Counter

import pytest

from gossamer.evaluation.experiment import settings_of
from gossamer.evaluation.long import (
    LONG,
    LongMultikey,
    LongNeedle,
    LongQA,
    LongVariables,
    LongWords,
)
from gossamer.evaluation.suite import SUITES, TASKS, Options, check_tasks, make_tasks, suite_tasks
from gossamer.evaluation.tasks import Example
from tests.evaluation.fakes import FakeSubject, run

LENGTH = 700


class Pieces:
    """A tokenizer of words, digits and marks, which begins every text with a token of its own."""

    def __call__(self, text, add_special_tokens=True):
        pieces = re.findall(r"[A-Za-z]{1,5}|\d|[^\w\s]|\n", text)
        return {"input_ids": [0] * add_special_tokens + [len(piece) for piece in pieces]}


def subject(answer=lambda prompt: ""):
    fake = FakeSubject(answer)
    fake.tokenizer = Pieces()
    return fake


def reads_numbers(prompt):
    question = prompt.splitlines()[-1]
    return " " + re.search(rf"{re.escape(question)} (\d+)\.", prompt)[1] + ". The"


def follows_variables(prompt):
    name = re.search(r"VAR (\w+) is$", prompt)[1]
    while not name.isdigit():
        name = re.search(rf"VAR {name} = (?:VAR )?(\w+)\.", prompt)[1]
    return f" {name}.\nThe value"


def counts_words(prompt):
    words = prompt.rsplit("Words: ", 1)[1].split("\n")[0].split()
    return " " + ", ".join(word for word, _ in Counter(words).most_common(3)) + ".\n\nWords: a"


def reads_facts(prompt):
    start = prompt.rsplit("Answer: ", 1)[1]
    return " " + re.search(rf"(?<!Answer: ){start} (\w+)\.", prompt)[1] + ".\nQuestion"


READERS = {
    "long-needle": reads_numbers,
    "long-multikey": reads_numbers,
    "long-variables": follows_variables,
    "long-words": counts_words,
    "long-qa": reads_facts,
}


@pytest.fixture(params=LONG)
def name(request):
    return request.param


def small(name, **settings):
    return LONG[name](**{"length": LENGTH, "examples": 13, **settings})


def prompts_of(task):
    return [e.prompt for examples in task.documents(Pieces()) for e in examples]


def test_who_reads_the_prompt_is_right(name):
    task = small(name)
    scores = run(task, subject(READERS[name]))
    assert len(scores) == task.count == 13
    assert all(score.value == 1 for score in scores.values())
    assert all(score.value == 0 for score in run(task, subject()).values())
    assert task.name == f"{name}-{LENGTH}"


def test_who_forgets_the_document_is_wrong(name):
    """Answered questions do not give away the others: only words can be guessed, and one of 12."""

    def guesses(prompt):
        numbers = re.findall(r"\d{4}", prompt.split("\n\n", 1)[-1])
        return f" {numbers[0]}" if numbers else " Paris"

    values = [score.value for score in run(small(name), subject(guesses)).values()]
    assert sum(values) <= 0.25 * len(values)


def test_the_same_seed_the_same_examples(name):
    first, again, other = (prompts_of(small(name, seed=seed)) for seed in (3, 3, 4))
    assert first == again
    assert not set(first) & set(other)


@pytest.mark.parametrize("length", [400, 401, 1000, 5000])
def test_prompts_fill_the_length(name, length):
    task = small(name, length=length, examples=3)
    for examples in task.documents(Pieces()):
        sizes = [len(Pieces()(e.prompt)["input_ids"]) + e.max_tokens for e in examples]
        assert length - 40 < max(sizes) <= length


def test_done_examples_are_not_asked_again(name):
    scores = run(small(name), subject(READERS[name]))
    done = list(scores)[::2]
    fake = subject(READERS[name])
    assert set(run(small(name), fake, done)) == set(scores) - set(done)
    assert sum(map(len, fake.batches)) == len(scores) - len(done)


def test_questions_of_a_document_begin_alike(name):
    for examples in small(name).documents(Pieces()):
        starts = {e.prompt[: e.prompt.rindex("\n\n")] for e in examples}
        assert len(starts) == 1


def test_what_is_asked_is_told_once():
    """Before the answered questions, in full, with one answer."""
    for kind in (LongNeedle, LongMultikey):
        for examples in kind(length=LENGTH, examples=20).documents(Pieces()):
            for e in examples:
                hay, end = e.prompt.split("\n\n")
                question = end.splitlines()[-1]
                assert hay.count(question) == hay.count(f"{question} {e.target[0]}.") == 1
                assert end.count(question) == 1


def test_multikey_has_nothing_but_keys():
    (examples,) = LongMultikey(length=LENGTH, examples=10).documents(Pieces())
    hay, end = examples[0].prompt.split("\n\n")
    keys = re.findall(r"The number of (\w+'s \w+) is \d{4}\.", hay)
    assert len(keys) == len(set(keys)) > 40
    assert not re.sub(r"The number of \w+'s \w+ is \d{4}\.", "", hay).strip()
    assert len(end.splitlines()) == 4


@pytest.mark.parametrize("hops", [0, 1, 4])
def test_chains_are_whole_and_in_order(hops):
    task = LongVariables(length=LENGTH, examples=10, hops=hops)
    for examples in task.documents(Pieces()):
        hay = examples[0].prompt.split("\n\n")[0]
        seen = {}
        for variable, value in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", hay):
            seen[variable] = value if value.isdigit() else seen[value]
        assert len(seen) == 8 * (hops + 1)
        assert set(Counter(seen.values()).values()) == {hops + 1}
        for e in examples:
            assert seen[re.search(r"VAR (\w+) is$", e.prompt)[1]] == e.target[0]


@pytest.mark.parametrize("length", [250, 2000])
def test_common_words_are_common(length):
    for (e,) in LongWords(length=length, examples=5).documents(Pieces()):
        words = e.prompt.rsplit("Words: ", 1)[1].split("\n")[0].split()
        counts = Counter(words).most_common()
        assert {word for word, _ in counts[:3]} == set(e.target)
        assert counts[2][1] > 2 * counts[3][1]
        shots = e.prompt.rsplit("Words: ", 1)[0]
        assert shots.count("The most common words are:") == 3
        assert not any(f" {word}," in shots or f" {word}." in shots for word in e.target)


def test_filler_of_a_text():
    text = "One here. Two there! Three nowhere? " * 20
    for kind in (LongNeedle, LongVariables, LongQA):
        task = kind(length=LENGTH, examples=1, text=text)
        ((e,),) = task.documents(Pieces())
        assert "Two there! Three nowhere?" in e.prompt
        assert text not in str(settings_of(task))


def test_what_counts_as_an_answer():
    words = Example("a", "", ("apple", "box", "sea"), 4)
    rights = (
        (" apple, box, sea.\nWords", 3),
        ("Sea box apple", 3),
        ("apple, apple, apple, box", 1),  # the first three words
        ("cat, dog, cow, apple, box, sea", 0),
        ("cat\napple", 0),
        ("", 0),
    )
    for text, right in rights:
        assert LongWords().grade(text, words) == right / 3
    city = Example("a", "", ("Paris",), 4)
    for text, right in (
        (" Paris.", 1),
        (" Paris\n", 1),
        (" Rome, Paris", 0),
        ("Parish", 0),
        ("", 0),
    ):
        assert LongQA().grade(text, city) == right


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LongNeedle(length=0), "length is 0; must be an integer of at least 1"),
        (lambda: LongNeedle(examples=0), "examples is 0"),
        (lambda: LongMultikey(questions=0), "questions is 0"),
        (lambda: LongVariables(chains=3), "chains is 3; must be an integer of at least 4"),
        (lambda: LongVariables(hops=99), "chains is 8 and hops is 99; must have at most"),
        (lambda: LongWords(common=20), "common is 20; must be 1 to"),
        (lambda: LongQA(facts=12), "facts is 12; must be an integer of at least 13"),
        (lambda: LongQA(facts=999), "facts is 999; must be at most"),
        (lambda: prompts_of(LongQA(length=50)), "length is 50; must be at least .* for long-qa"),
        (lambda: list(LongNeedle().documents(None)), "no tokenizer"),
        (lambda: suite_tasks("short", None), "suite is 'short'; must be one of default, long"),
        (lambda: suite_tasks("long", "needle"), "--suite is 'long' and --tasks is 'needle'"),
    ],
)
def test_wrong_settings(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_the_suite_has_every_task_at_every_length():
    tasks = make_tasks(suite_tasks("long", None), Options(), 8192)
    assert [t.name for t in tasks] == [f"{name}-{n}" for name in LONG for n in (1024, 2048)]
    quick = make_tasks(SUITES["long"], Options(quick=True, seed=5), 8192)
    assert {(t.length, t.examples, t.seed) for t in quick} == {(512, 10, 5)}
    check_tasks(quick, Pieces(), 512)
    with pytest.raises(ValueError, match="512; must be at most 511, what the model has"):
        check_tasks(quick, Pieces(), 511)
    assert suite_tasks(None, None) == ["perplexity", "lookup", "needle", "copying"]
    assert suite_tasks(None, " long-qa, agreement,") == ["long-qa", "agreement"]
    assert all(name in TASKS for suite in SUITES.values() for name in suite)
