"""Documents that fill a length: what is told lies among filler, and questions follow."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any, ClassVar

from gossamer.evaluation.filler import token_count
from gossamer.evaluation.retrieval import Recall
from gossamer.evaluation.tasks import Example, at_least


@dataclass(frozen=True)
class Parts:
    """Prompts are head, haystack, tail and one of the questions in `asked`, which has its answers.

    told: what lies in the haystack, in this order. filler: what surrounds it, without end.
    """

    filler: Iterator[str]
    asked: Sequence[tuple[str, tuple[str, ...]]]
    told: Sequence[str] = ()
    head: str = ""
    tail: str = ""

    def prompts(self, filler: Sequence[str], places: Sequence[float]) -> list[str]:
        """places: where in the haystack `told` lies, from 0 to 1, increasing."""
        hay, used = [], 0
        for place, told in zip(places, self.told, strict=True):
            until = round(place * len(filler))
            hay += [*filler[used:until], told]
            used = until
        document = " ".join([*hay, *filler[used:]])
        return [f"{self.head}{document}\n\n{self.tail}{question}" for question, _ in self.asked]


@dataclass(frozen=True)
class LongTask(Recall):
    """length: of prompt and answer, in tokens; prompts fill it to within a sentence or two.

    text: what filler comes from; made up if there is none.
    """

    length: int = 1024
    examples: int = 100
    seed: int = 0
    text: str = ""

    stem: ClassVar[str]

    def __post_init__(self) -> None:
        at_least(self, length=1, examples=1)

    @property
    def name(self) -> str:
        return f"{self.stem}-{self.length}"

    @property
    def count(self) -> int:
        return self.examples

    @property
    @abstractmethod
    def answer_tokens(self) -> int:
        """At most."""

    @abstractmethod
    def parts(self, random: Random) -> Parts:
        """A new document."""

    def documents(self, tokenizer: Any) -> Iterator[list[Example]]:
        """Raises ValueError for a length that has no room for what has to be said."""
        left = self.examples
        for index in count():
            examples = self._document(index, tokenizer)[:left]
            left -= len(examples)
            yield examples
            if not left:
                return

    def _document(self, index: int, tokenizer: Any) -> list[Example]:
        random = Random(f"{self.name}-{self.seed}-{index}")
        parts = self.parts(random)
        places = sorted(random.random() for _ in parts.told)
        prompts = self._fitted(parts, places, tokenizer)
        meta = {"length": self.length}
        return [
            Example(f"{index}-{i}", prompt, answers, self.answer_tokens, meta)
            for i, (prompt, (_, answers)) in enumerate(zip(prompts, parts.asked, strict=True))
        ]

    def _fitted(self, parts: Parts, places: Sequence[float], tokenizer: Any) -> list[str]:
        """Prompts with as much filler as there is room for."""
        least = _longest(parts.prompts([], places), tokenizer) + self.answer_tokens
        if least > self.length:
            raise ValueError(f"length is {self.length}; must be at least {least} for {self.stem}")
        room, filler = self.length - least, []
        for sentence in parts.filler:
            room -= token_count(tokenizer, sentence)
            if room < 0:
                break
            filler.append(sentence)
        prompts = parts.prompts(filler, places)
        while _longest(prompts, tokenizer) + self.answer_tokens > self.length:
            filler.pop()  # what is joined may have more tokens than its parts
            prompts = parts.prompts(filler, places)
        return prompts


def _longest(prompts: Sequence[str], tokenizer: Any) -> int:
    """Tokens as the engine counts them."""
    if tokenizer is None:
        raise ValueError("the model has no tokenizer; this task needs one")
    return max(len(tokenizer(prompt)["input_ids"]) for prompt in prompts)
