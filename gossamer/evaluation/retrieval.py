"""Find a number that was said long ago: among many records, or in a haystack.

Questions begin with the words of what they ask for, so that a small model without instructions can
answer: with 40 records and 600 tokens of filler, SmolLM2-135M finds 85 of 100 numbers of 3 digits
when both say "The number of NAME is", but 6 of 32 when records say "NAME: number".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any, ClassVar

from gossamer.evaluation.asking import ask_by_document, first_number
from gossamer.evaluation.checks import at_least, digest_fields
from gossamer.evaluation.tasks import Emit, Example, Kind, Subject
from gossamer.evaluation.words import names, sentences, token_count

FACT = "The number of {} is"
ANSWER_ROOM = 4  # tokens beside digits: a space, and what tokenizers add


@dataclass(frozen=True)
class Lookup:
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
    kind: ClassVar[Kind] = "accuracy"

    def __post_init__(self) -> None:
        at_least(self, examples=1, questions=1, shots=0, digits=1, filler_tokens=0)
        _enough_numbers(self.digits, self.records)
        if self.shots + self.questions > self.records:
            raise ValueError(
                f"records is {self.records}; must be at least shots + questions, "
                f"{self.shots + self.questions}"
            )

    @property
    def settings(self) -> dict[str, Any]:
        return digest_fields(self, "text")

    @property
    def count(self) -> int:
        return self.examples

    def run(self, subject: Subject, done: set[str], emit: Emit) -> None:
        ask_by_document(subject, self.documents(subject.tokenizer), done, emit, first_number)

    def documents(self, tokenizer: Any) -> Iterator[list[Example]]:
        """Examples that share a document, as many as are wanted in all."""
        for start in range(0, self.examples, self.questions):
            index = start // self.questions
            questions = self._document(index, tokenizer)
            yield questions[: self.examples - start]

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
class Needle:
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
    kind: ClassVar[Kind] = "accuracy"

    def __post_init__(self) -> None:
        at_least(self, rounds=1, digits=1)
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"lengths is {self.lengths}; must be one or more, at least 1")
        increasing = all(a < b for a, b in pairwise(self.depths))
        if not self.depths or not increasing or self.depths[0] < 0 or self.depths[-1] > 1:
            raise ValueError(f"depths is {self.depths}; must be increasing, from 0 to 1")
        _enough_numbers(self.digits, len(self.depths))

    @property
    def settings(self) -> dict[str, Any]:
        return digest_fields(self, "text")

    @property
    def count(self) -> int:
        return self.rounds * len(self.lengths) * len(self.depths)

    def run(self, subject: Subject, done: set[str], emit: Emit) -> None:
        ask_by_document(subject, self.documents(subject.tokenizer), done, emit, first_number)

    def documents(self, tokenizer: Any) -> Iterator[list[Example]]:
        """Examples that share a haystack."""
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


def _facts(random: Random, count: int, digits: int) -> list[tuple[str, str]]:
    """Different names with different numbers."""
    numbers = random.sample(range(10 ** (digits - 1), 10**digits), count)
    return list(zip(names(random, count), map(str, numbers), strict=True))


def _said(name: str, number: str) -> str:
    return f"{FACT.format(name)} {number}."


def _enough_numbers(digits: int, count: int) -> None:
    if 9 * 10 ** (digits - 1) < count:
        raise ValueError(f"digits is {digits}, too few for {count} different numbers")
