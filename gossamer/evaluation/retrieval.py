"""Recall what was said long ago: a number among many records or in a haystack, a list of words.

Questions begin with the words of what they ask for, so that a small model without instructions can
answer: with 40 records and 600 tokens of filler, SmolLM2-135M finds 85 of 100 numbers of 3 digits
when both say "The number of NAME is", but 6 of 32 when records say "NAME: number". Filler lies
between what is said and the question, so it has left a dense window by then.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from random import Random
from typing import Any, ClassVar

from gossamer.evaluation.filler import NOUNS, names, sentences, token_count
from gossamer.evaluation.tasks import (
    Emit,
    Example,
    Kind,
    Subject,
    ask_by_document,
    at_least,
    first_line,
    first_number,
)

FACT = "The number of {} is"
ANSWER_ROOM = 4  # tokens next to the digits: a space, and what tokenizers add
LINE_END = 2  # tokens that say that a list is over


@dataclass(frozen=True)
class Recall(ABC):
    """Documents of examples that are asked together; right is what the first number says."""

    kind: ClassVar[Kind] = "accuracy"

    @property
    def settings(self) -> dict[str, Any]:
        """The fields, with a digest in place of a long text."""
        settings = asdict(self)
        if text := settings.get("text"):
            settings["text"] = hashlib.sha256(text.encode()).hexdigest()[:16]
        return settings

    def run(self, subject: Subject, done: set[str], emit: Emit) -> None:
        ask_by_document(subject, self.documents(subject.tokenizer), done, emit, self.grade)

    @abstractmethod
    def documents(self, tokenizer: Any) -> Iterator[list[Example]]:
        """Examples that share a document, as many as are wanted in all."""

    def grade(self, text: str, example: Example) -> float:
        return first_number(text, example)


@dataclass(frozen=True)
class Lookup(Recall):
    """Key-value lookup: `records` numbers, ~filler_tokens of filler, then one question each.

    A document has `questions` questions, each after `shots` others that are answered. text: where
    filler comes from; made up if there is none.
    """

    examples: int = 100
    records: int = 40
    filler_tokens: int = 600
    questions: int = 10
    shots: int = 5
    digits: int = 3
    seed: int = 0
    text: str = ""

    name: ClassVar[str] = "lookup"

    def __post_init__(self) -> None:
        at_least(self, examples=1, questions=1, shots=0, digits=1, filler_tokens=0)
        _enough_numbers(self.digits, self.records)
        if self.shots + self.questions > self.records:
            raise ValueError(
                f"records is {self.records}; must be at least shots + questions, "
                f"{self.shots + self.questions}"
            )

    @property
    def count(self) -> int:
        return self.examples

    def documents(self, tokenizer: Any) -> Iterator[list[Example]]:
        return _documents(self.examples, self.questions, lambda i: self._document(i, tokenizer))

    def _document(self, index: int, tokenizer: Any) -> list[Example]:
        random = Random(f"lookup-{self.seed}-{index}")
        facts = _facts(random, self.records, self.digits)
        lines = [_said(*fact) for fact in facts]
        between = " ".join(sentences(random, self.text, tokenizer, self.filler_tokens))
        asked = random.sample(range(self.records), self.shots + self.questions)
        shots = "".join(f"{lines[record]}\n" for record in asked[: self.shots])
        start = "\n".join(lines) + f"\n\n{between}\n\n{shots}"
        return [
            Example(
                id=f"{index}-{record}",
                prompt=start + FACT.format(facts[record][0]),
                target=(facts[record][1],),
                max_tokens=self.digits + ANSWER_ROOM,
                meta={"record": record},
            )
            for record in asked[self.shots :]
        ]


@dataclass(frozen=True)
class Needle(Recall):
    """Needles in a haystack of `length` tokens, one at each depth; each is asked for.

    Depth 0 is the start of the haystack and 1 its end. rounds: haystacks of each length. text: what
    the haystack is made of; made up if there is none.
    """

    lengths: tuple[int, ...] = (512, 1024, 2048)
    depths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    rounds: int = 6
    digits: int = 4
    seed: int = 0
    text: str = ""

    name: ClassVar[str] = "needle"

    def __post_init__(self) -> None:
        at_least(self, rounds=1, digits=1)
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"lengths is {self.lengths}; must be one or more, at least 1")
        increasing = all(a < b for a, b in pairwise(self.depths))
        if not self.depths or not increasing or self.depths[0] < 0 or self.depths[-1] > 1:
            raise ValueError(f"depths is {self.depths}; must be increasing, from 0 to 1")
        _enough_numbers(self.digits, len(self.depths))

    @property
    def count(self) -> int:
        return self.rounds * len(self.lengths) * len(self.depths)

    def documents(self, tokenizer: Any) -> Iterator[list[Example]]:
        for length in self.lengths:
            for index in range(self.rounds):
                yield self._document(length, index, tokenizer)

    def _document(self, length: int, index: int, tokenizer: Any) -> list[Example]:
        random = Random(f"needle-{self.seed}-{length}-{index}")
        facts = _facts(random, len(self.depths), self.digits)
        needles = [_said(*fact) for fact in facts]
        room = length - sum(token_count(tokenizer, needle) for needle in needles)
        hay = sentences(random, self.text, tokenizer, room)
        for depth, needle in reversed(list(zip(self.depths, needles, strict=True))):
            hay.insert(round(depth * len(hay)), needle)
        return [
            Example(
                id=f"{length}-{index}-{depth:g}",
                prompt=" ".join(hay) + "\n\n" + FACT.format(who),
                target=(number,),
                max_tokens=self.digits + ANSWER_ROOM,
                meta={"length": length, "depth": depth},
            )
            for depth, (who, number) in zip(self.depths, facts, strict=True)
        ]


@dataclass(frozen=True)
class Copying(Recall):
    """`lists` lists of `words` random words; after `shots` repetitions, the others are asked for.

    An answer is right when its first line is the whole list: the score is the share of such lists.
    """

    examples: int = 100
    lists: int = 12
    words: int = 4
    shots: int = 4
    filler_tokens: int = 100
    seed: int = 0

    name: ClassVar[str] = "copying"

    def __post_init__(self) -> None:
        at_least(self, examples=1, lists=1, words=1, shots=0, filler_tokens=0)
        if self.shots >= self.lists:
            raise ValueError(f"shots is {self.shots}; must be fewer than lists, {self.lists}")
        if self.words > len(NOUNS):
            raise ValueError(f"words is {self.words}; must be 1 to {len(NOUNS)}")

    @property
    def count(self) -> int:
        return self.examples

    def documents(self, tokenizer: Any) -> Iterator[list[Example]]:
        asked = self.lists - self.shots
        return _documents(self.examples, asked, lambda i: self._document(i, tokenizer))

    def grade(self, text: str, example: Example) -> float:
        return first_line(text, example)

    def _document(self, index: int, tokenizer: Any) -> list[Example]:
        random = Random(f"copying-{self.seed}-{index}")
        owners = names(random, self.lists)
        lists = {owner: " ".join(random.sample(NOUNS, self.words)) for owner in owners}
        lines = [f"{owner}: {words}\n" for owner, words in lists.items()]
        asked = random.sample(range(self.lists), self.lists)
        between = " ".join(sentences(random, "", tokenizer, self.filler_tokens))
        shots = "".join(lines[i] for i in asked[: self.shots])
        start = "".join(lines) + f"\n{between}\n\n{shots}"
        return [
            Example(
                id=f"{index}-{i}",
                prompt=f"{start}{owners[i]}:",
                target=(lists[owners[i]],),
                max_tokens=token_count(tokenizer, lists[owners[i]]) + LINE_END,
                meta={"list": i},
            )
            for i in asked[self.shots :]
        ]


def _documents(
    examples: int, each: int, make: Callable[[int], list[Example]]
) -> Iterator[list[Example]]:
    """Documents of `each` examples, until there are enough."""
    for start in range(0, examples, each):
        yield make(start // each)[: examples - start]


def _facts(random: Random, count: int, digits: int) -> list[tuple[str, str]]:
    """Different names with different numbers."""
    numbers = random.sample(range(10 ** (digits - 1), 10**digits), count)
    return list(zip(names(random, count), map(str, numbers), strict=True))


def _said(name: str, number: str) -> str:
    return f"{FACT.format(name)} {number}."


def _enough_numbers(digits: int, count: int) -> None:
    if 9 * 10 ** (digits - 1) < count:
        raise ValueError(f"digits is {digits}, too few for {count} different numbers")
