"""What one step computes, as plain numbers: the scheduler writes it, every rank's runner reads it.

Plain numbers can be sent to the workers of tensor parallelism as they are.
"""

from dataclasses import dataclass, field

from gossamer.engine.block_manager import Moves


@dataclass(frozen=True)
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

    @property
    def decodes(self) -> bool:
        """A single token that sees all of the past."""
        return len(self) == 1 and self.end > self.prompt

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class StepInput:
    """Spans of decoded tokens come first, then chunks; `ids` are their tokens in order."""

    ids: list[int]
    spans: list[Span]
    moves: Moves = field(default_factory=Moves)

    @property
    def decodes(self) -> int:
        """How many spans are decoded tokens."""
        return sum(span.decodes for span in self.spans)
