"""What an evaluation is made of: examples, their scores, tasks, and the subjects they examine."""

from collections.abc import Callable, Sequence
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
    share: those bytes relative to dense float16. first_scored: in a window of so many tokens, the
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
