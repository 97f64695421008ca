"""What a search is asked, and how much work it may be."""

from dataclasses import dataclass

from gossamer.evaluation.frontier.budget import Budget
from gossamer.evaluation.frontier.candidates import Candidates, make_candidates, within
from gossamer.evaluation.frontier.selection import REACH
from gossamer.kv import KVShape


@dataclass(frozen=True)
class Problem:
    """What is asked. half: the type of 16 bits that goes with the model (fp16, bf16)."""

    shape: KVShape
    budget: Budget
    half: str = "fp16"
    calibrated: bool = False

    def candidates(self) -> Candidates:
        """Raises ValueError for a budget that nothing fits."""
        every = make_candidates(self.shape.head_dim, half=self.half, calibrated=self.calibrated)
        return within(every, self.shape, self.budget, REACH)


@dataclass(frozen=True)
class Effort:
    """probes: engine runs for each side. pairs: to measure. minutes: no new runs after them.

    probe_tokens: of the text that probes see; the first windows. Raises ValueError.
    """

    probes: int = 8
    pairs: int = 6
    probe_tokens: int = 4096
    minutes: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("probes", 0), ("pairs", 1), ("probe_tokens", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} is {value!r}; must be an integer of at least {least}")
        if self.minutes is not None and not self.minutes > 0:
            raise ValueError(f"minutes is {self.minutes}; must be above 0")
