"""What an evaluation is made of: examples, their scores, tasks, and the subjects they examine.

`ask` and `ask_by_document` do the work of tasks whose examples have answers.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from gossamer.engine.prompts import Prompt

Kind = Literal["nll", "accuracy"]


@dataclass(frozen=True)
class Example:
    """One question. target: the answers that count as right; none where likelihood is measured."""

    id: str
    prompt: Prompt
    target: tuple[str, ...]
    max_tokens: int
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """What an example gave. value: sum of NLL over `weight` tokens, or a score from 0 to 1."""

    example: str
    value: float
    weight: float = 1.0
    meta: dict[str, Any] = field(default_factory=dict)


class Generate(Protocol):
    """Greedy continuations, at most max_tokens[i] tokens for prompt i."""

    def __call__(self, prompts: Sequence[Prompt], max_tokens: Sequence[int]) -> list[str]: ...


class LogLikelihood(Protocol):
    """For each window, log probabilities of its tokens 1, 2, ... given those before them."""

    def __call__(self, windows: Sequence[Sequence[int]]) -> list[list[float]]: ...


class Subject(Protocol):
    """What is examined: the engine with a cache, or a peer.

    name: how rows of tables call it. bytes_per_token: of the KV cache, beyond dense windows.
    share: those bytes relative to dense float16. first_scored: in a window of `tokens` tokens, the
    first one whose likelihood shows what the cache costs; 1 where all do.
    """

    @property
    def name(self) -> str: ...
    @property
    def bytes_per_token(self) -> float: ...
    @property
    def share(self) -> float: ...
    @property
    def tokenizer(self) -> Any: ...
    @property
    def generate(self) -> Generate: ...
    @property
    def loglikelihood(self) -> LogLikelihood: ...
    def first_scored(self, tokens: int) -> int: ...


Emit = Callable[[Score], None]
Grade = Callable[[str, Example], float]


class Task(Protocol):
    """A set of examples and how they are scored.

    A dataclass: its fields are the settings that name its results (see gossamer.evaluation.store),
    unless it has a property `settings` of its own. With a property `count`, bars know the end.
    """

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> Kind: ...

    def run(self, subject: Subject, done: set[str], emit: Emit) -> None:
        """Score the examples that are not in `done`, and emit each score as it is known."""
        ...


# ---- for tasks whose examples have answers -------------------------------------------------------


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


def at_least(task: Any, **least: int) -> None:
    """Raises ValueError for the first field of a task that is below its least value."""
    for name, low in least.items():
        value = getattr(task, name)
        if type(value) is not int or value < low:
            raise ValueError(f"{name} is {value!r}; must be an integer of at least {low}")
