"""What one step computes, as plain numbers: the scheduler writes it, every rank's runner reads it.

Plain numbers can be sent to the workers of tensor parallelism as they are.
"""

from dataclasses import dataclass, field

from gossamer.engine.block_manager import Moves


@dataclass(frozen=True)
class Span:
    """Tokens start to end - 1 of the sequence in line `row` of the page tables.

    sample: whether the logits after its last token are wanted; score: those after all of them.
    whole_prompt: all of it is attended to densely (prefill=dense).
    """

    row: int
    start: int
    end: int
    sample: bool
    whole_prompt: bool = False
    score: bool = False

    @property
    def logits(self) -> int:
        """After how many of its last tokens logits are wanted."""
        return len(self) if self.score else int(self.sample)

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class StepInput:
    """Spans of single tokens come first, then the longer ones; `ids` are their tokens in order."""

    ids: list[int]
    spans: list[Span]
    moves: Moves = field(default_factory=Moves)

    @property
    def decodes(self) -> int:
        """How many spans are single tokens."""
        return sum(len(span) == 1 for span in self.spans)
