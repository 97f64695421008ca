"""Put examples to a subject and score its answers."""

import re
from collections.abc import Callable, Iterable, Sequence

from gossamer.evaluation.tasks import Emit, Example, Score, Subject

Grade = Callable[[str, Example], float]


def first_number(text: str, example: Example) -> float:
    """1 if the first whole number of the text is a target."""
    found = re.search(r"\d+", text)
    return float(found is not None and found[0] in example.target)


def first_line(text: str, example: Example) -> float:
    """1 if the first line that is not empty is a target, word by word."""
    line = next(iter(text.strip().splitlines()), "")
    return float(line.split() in [target.split() for target in example.target])


def ask(
    subject: Subject, examples: Sequence[Example], done: set[str], emit: Emit, grade: Grade
) -> None:
    """All examples that are not done, in one batch."""
    todo = [example for example in examples if example.id not in done]
    if not todo:
        return
    texts = subject.generate([e.prompt for e in todo], [e.max_tokens for e in todo])
    for example, text in zip(todo, texts, strict=True):
        meta = {**example.meta, "text": text}
        emit(Score(example.id, grade(text, example), meta=meta))


def ask_by_document(
    subject: Subject,
    documents: Iterable[Sequence[Example]],
    done: set[str],
    emit: Emit,
    grade: Grade,
) -> None:
    """Examples of one document begin alike: the first alone, so that the others find its prefix."""
    for examples in documents:
        todo = [example for example in examples if example.id not in done]
        ask(subject, todo[:1], done, emit, grade)
        ask(subject, todo[1:], done, emit, grade)
