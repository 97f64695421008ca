"""What one step computes, as plain numbers: the scheduler writes it, every rank's runner reads it.

Plain numbers can be sent to the workers of tensor parallelism as they are.
"""

from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gossamer.engine.block_manager import Moves

Ints = NDArray[np.int64]
PENDING = -1  # the id of a token that was sampled in the step before, and only the device knows


@dataclass(slots=True)
class Span:
    """Tokens start to end - 1 of the sequence in row `row` of the page tables.

    sample: whether the logits after its last token are wanted; score: those after all of them.
    whole_prompt: all of it is attended to densely (prefill=dense). prompt: tokens of
    the prompt where it has a mask, else 0.
    """

    row: int
    start: int
    end: int
    sample: bool
    whole_prompt: bool = False
    score: bool = False
    prompt: int = 0

    @property
    def logits(self) -> int:
        """After how many of its last tokens logits are wanted."""
        return len(self) if self.score else int(self.sample)

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(slots=True)
class Decodes:
    """Single tokens that see all of the past: rows of the page tables, positions of the tokens.

    Lists of numbers: in the steady state a step has hundreds of these and nothing else.
    samples: whether the logits after it are wanted; not of tokens that are computed again.
    """

    rows: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    samples: list[bool] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def spans(self) -> list[Span]:
        each = zip(self.rows, self.positions, self.samples, strict=True)
        return [Span(row, position, position + 1, samples) for row, position, samples in each]


@dataclass(frozen=True)
class StepInput:
    """Decoded tokens come first, then chunks; `ids` are their tokens in order, or PENDING."""

    ids: list[int]
    decodes: Decodes
    chunks: list[Span]
    moves: Moves = field(default_factory=Moves)

    @property
    def spans(self) -> list[Span]:
        """Everything that is computed, in order."""
        return self.decodes.spans + self.chunks

    @property
    def numbers(self) -> Ints:
        """Ids, positions and rows of the page tables of all tokens: [3, tokens]."""
        decoded, lengths = len(self.decodes), [len(span) for span in self.chunks]
        found = np.empty((3, len(self.ids)), np.int64)
        found[0] = self.ids
        found[1:, :decoded] = self.decodes.positions, self.decodes.rows
        found[1, decoded:] = ranges([span.start for span in self.chunks], lengths)
        found[2, decoded:] = np.repeat([span.row for span in self.chunks], lengths)
        return found

    @property
    def wanted(self) -> list[int] | None:
        """The tokens after which logits are wanted; None for all."""
        decoded = self.decodes.samples
        if not self.chunks and all(decoded):
            return None
        ends = accumulate((len(span) for span in self.chunks), initial=len(decoded))
        chosen = [token for token, samples in enumerate(decoded) if samples]
        for start, span in zip(ends, self.chunks, strict=False):
            end = start + len(span)
            chosen.extend(range(end - span.logits, end))
        return chosen


def ranges(starts: ArrayLike, lengths: ArrayLike) -> Ints:
    """start, start + 1, ... of each start, as many as its length, one after the other."""
    counts = np.asarray(lengths, np.int64)
    begins = np.cumsum(counts) - counts
    found: Ints = np.arange(counts.sum()) + np.repeat(np.asarray(starts, np.int64) - begins, counts)
    return found
