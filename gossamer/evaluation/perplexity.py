"""How well a text is predicted, in independent windows."""

import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from gossamer.evaluation.tasks import Emit, Kind, Score, Subject
from gossamer.evaluation.texts import read_text

PIECE_TOKENS = 64  # that one sum of NLL covers: 256 pairs to compare in 16,384 tokens


@dataclass(frozen=True)
class Perplexity:
    """NLL of `tokens` tokens of a text, in whole windows of `context` tokens.

    The first token of a window is given, so a window scores context - 1 of them. A text with fewer
    tokens gives fewer windows. source: how the text is called in results.
    """

    text: str = field(repr=False)
    source: str = "text"
    tokens: int = 16_384
    context: int = 2_048

    name: ClassVar[str] = "perplexity"
    kind: ClassVar[Kind] = "nll"

    def __post_init__(self) -> None:
        if self.context < 2:
            raise ValueError(f"context is {self.context}; must be at least 2 tokens")
        if self.tokens < self.context:
            raise ValueError(
                f"tokens is {self.tokens}; must be at least the context, {self.context}"
            )

    @classmethod
    def of_file(cls, path: Path, **options: Any) -> "Perplexity":
        """Of a file, or of a data set; raises as read_text does."""
        text, name = read_text(path)
        return cls(text, name, **options)

    @property
    def settings(self) -> dict[str, Any]:
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:16]
        return {
            "text": self.source,
            "sha256": digest,
            "tokens": self.tokens,
            "context": self.context,
        }

    @property
    def count(self) -> int:
        return self.tokens // self.context

    def run(self, subject: Subject, done: set[str], emit: Emit) -> None:
        """One window at a time: each is known as soon as it is computed."""
        for index, window in enumerate(self.windows(subject.tokenizer)):
            if (name := f"window-{index}") not in done:
                first = subject.first_scored(len(window))
                emit(_score(name, subject.loglikelihood([window])[0], first))

    def windows(self, tokenizer: Any) -> list[list[int]]:
        """Raises ValueError for a text that has no whole window."""
        if tokenizer is None:
            raise ValueError("the model has no tokenizer; perplexity needs one")
        ids = list(tokenizer(self.text)["input_ids"])
        if len(ids) < self.context:
            raise ValueError(
                f"{self.source} has {len(ids)} tokens; must have at least the context, "
                f"{self.context}: take a longer text or a shorter context"
            )
        ends = range(self.context, min(self.tokens, len(ids)) + 1, self.context)
        return [ids[end - self.context : end] for end in ends]


def _score(name: str, logprobs: list[float], first: int) -> Score:
    """Of log probabilities of tokens 1, 2, ...; pieces that begin before `first` do not count."""
    skipped = -(-(first - 1) // PIECE_TOKENS)
    counted = logprobs[skipped * PIECE_TOKENS :]
    sums = [
        round(-math.fsum(counted[start : start + PIECE_TOKENS]), 6)
        for start in range(0, len(counted), PIECE_TOKENS)
    ]
    meta = {"pieces": sums, "piece_tokens": PIECE_TOKENS}
    return Score(name, -math.fsum(counted), float(len(counted)), meta)
