"""How long greedy outputs stay those of another subject, the dense cache unless told otherwise."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from gossamer.evaluation.tasks import Emit, Kind, Score, Subject, at_least
from gossamer.evaluation.texts import read_text

BATCH = 8  # prompts at a time: scores are known, and kept, after each batch


@dataclass(frozen=True)
class Agreement:
    """Continuations of `tokens` tokens of pieces of a text, against those of the baseline.

    A score is the share of tokens before the first that differs, 1 where none does; meta says where
    that is. The baseline scores 1, and its outputs lie in the meta of its scores: `against` gives
    them to the task that examines another subject (gossamer.evaluation.experiment does so).
    source: how the text is called in results. prompt_tokens: of each piece.
    """

    text: str = field(repr=False)
    source: str = "text"
    examples: int = 100
    prompt_tokens: int = 512
    tokens: int = 64
    baseline: str = "dense"
    expected: Mapping[str, str] = field(default_factory=dict, repr=False)

    name: ClassVar[str] = "agreement"
    kind: ClassVar[Kind] = "accuracy"

    def __post_init__(self) -> None:
        at_least(self, examples=1, prompt_tokens=1, tokens=1)

    @classmethod
    def of_file(cls, path: Path, **options: Any) -> Self:
        """Of a file, or of a data set; raises as read_text does."""
        text, name = read_text(path)
        return cls(text, name, **options)

    @property
    def settings(self) -> dict[str, Any]:
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:16]
        names = ("examples", "prompt_tokens", "tokens", "baseline")
        return {
            "text": self.source,
            "sha256": digest,
            **{name: getattr(self, name) for name in names},
        }

    @property
    def count(self) -> int:
        return self.examples

    def against(self, scores: Mapping[str, Score]) -> Self:
        """The task with the outputs that these scores of the baseline have kept."""
        return replace(self, expected={name: s.meta["text"] for name, s in scores.items()})

    def run(self, subject: Subject, done: set[str], emit: Emit) -> None:
        """Raises ValueError where an output of the baseline is missing, before any is computed."""
        prompts = self.prompts(subject.tokenizer)
        todo = [name for name in prompts if name not in done]
        if subject.name != self.baseline and not self.expected.keys() >= set(todo):
            raise ValueError(
                f"{self.name} needs the outputs of {self.baseline}, and has {len(self.expected)} "
                f"of {self.examples}; run {self.baseline} first, with the same settings"
            )
        for start in range(0, len(todo), BATCH):
            names = todo[start : start + BATCH]
            texts = subject.generate([prompts[n] for n in names], [self.tokens] * len(names))
            for name, text in zip(names, texts, strict=True):
                expected = text if subject.name == self.baseline else self.expected[name]
                emit(_score(name, expected, text, subject.tokenizer))

    def prompts(self, tokenizer: Any) -> dict[str, list[int]]:
        """Pieces from all over the text. Raises ValueError for a text that has too few tokens."""
        if tokenizer is None:
            raise ValueError("the model has no tokenizer; agreement needs one")
        ids = list(tokenizer(self.text)["input_ids"])
        starts = len(ids) - self.prompt_tokens + 1
        if starts < self.examples:
            raise ValueError(
                f"{self.source} has {len(ids)} tokens; must have at least "
                f"{self.prompt_tokens + self.examples - 1} for {self.examples} different prompts"
            )
        found = (index * starts // self.examples for index in range(self.examples))
        return {f"{start}": ids[start : start + self.prompt_tokens] for start in found}


def _score(name: str, expected: str, text: str, tokenizer: Any) -> Score:
    ours, theirs = (
        tokenizer(t, add_special_tokens=False)["input_ids"] if t else [] for t in (expected, text)
    )
    equal, total = _equal(ours, theirs), max(len(ours), len(theirs))
    differs = None if equal == total else equal
    meta = {"text": text, "tokens": total, "first_difference": differs}
    return Score(name, equal / total if total else 1.0, meta=meta)


def _equal(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens that both begin with."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
