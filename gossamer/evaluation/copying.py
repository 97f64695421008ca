"""Recall lists of words: all lists are shown, then each is asked for again, word by word.

Filler lies between a list and its repetition, so it has left a dense window by then.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from gossamer.evaluation.asking import ask_by_document, first_line
from gossamer.evaluation.checks import at_least, digest_fields
from gossamer.evaluation.tasks import Emit, Example, Kind, Subject
from gossamer.evaluation.words import NOUNS, names, sentences, token_count


@dataclass(frozen=True)
class Copying:
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
    kind: ClassVar[Kind] = "accuracy"

    def __post_init__(self) -> None:
        at_least(self, examples=1, lists=1, words=1, shots=0, filler_tokens=0)
        if self.shots >= self.lists:
            raise ValueError(f"shots is {self.shots}; must be fewer than lists, {self.lists}")
        if self.words > len(NOUNS):
            raise ValueError(f"words is {self.words}; must be 1 to {len(NOUNS)}")

    @property
    def settings(self) -> dict[str, Any]:
        return digest_fields(self)

    @property
    def count(self) -> int:
        return self.examples

    def run(self, subject: Subject, done: set[str], emit: Emit) -> None:
        ask_by_document(subject, self.documents(subject.tokenizer), done, emit, first_line)

    def documents(self, tokenizer: Any) -> Iterator[list[Example]]:
        """Examples that share their lists, as many as are wanted in all."""
        per_document = self.lists - self.shots
        for start in range(0, self.examples, per_document):
            found = self._document(start // per_document, tokenizer)
            yield found[: self.examples - start]

    def _document(self, index: int, tokenizer: Any) -> list[Example]:
        random = Random(f"copying-{self.seed}-{index}")
        owners = names(random, self.lists)
        lists = {owner: " ".join(random.sample(NOUNS, self.words)) for owner in owners}
        lines = [f"{owner}: {words}\n" for owner, words in lists.items()]
        asked = random.sample(range(self.lists), self.lists)
        between = " ".join(sentences(random, "", tokenizer, self.filler_tokens))
        shots = "".join(lines[i] for i in asked[: self.shots])
        start = "".join(lines) + f"\n{between}\n\n{shots}"
        room = 2  # the end of the line, which says that the list is over
        return [
            Example(
                id=f"{index}-{i}",
                prompt=f"{start}{owners[i]}:",
                target=(lists[owners[i]],),
                max_tokens=token_count(tokenizer, lists[owners[i]]) + room,
                meta={"list": i},
            )
            for i in asked[self.shots :]
        ]
