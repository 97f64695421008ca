"""How fast an op must be to ship, and what a suite says where that is not the usual."""

from dataclasses import dataclass

MEAN, WORST = 1.2, 0.9


@dataclass(frozen=True)
class Target:
    """Speed-up over eager PyTorch (or over the fastest peer, where a suite has no "eager").

    mean: of the geometric mean over all points of the suite. worst: of every single point. A
    suite that asks for less than 1.2 and 0.9 says why; `gossamer check-op` prints it.
    """

    mean: float = MEAN
    worst: float = WORST
    reason: str = ""

    def __post_init__(self) -> None:
        if (self.mean < MEAN or self.worst < WORST) and not self.reason:
            raise ValueError(
                f"a target of {self.mean:g}x and {self.worst:g}x is below {MEAN}x and {WORST}x; "
                "must have a reason"
            )


USUAL = Target()
