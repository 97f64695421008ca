"""Bounds of latency that answers shall keep: what a load test counts and a plan obeys."""

from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True)
class Bounds:
    """Milliseconds at most; None for any.

    ttft: time to first token; tpot: time per output token after the first, on average over the
    answer; e2e: the whole request.
    """

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    @classmethod
    def parse(cls, text: str, option: str) -> "Bounds":
        """From `ttft:500,tpot:50,e2e:5000` or some of these. option: its name, for ValueErrors."""
        names, found = [field.name for field in fields(cls)], dict[str, float]()
        for part in text.split(","):
            name, _, number = (piece.strip() for piece in part.partition(":"))
            if name not in names or name in found:
                raise ValueError(
                    f"{option} has {part.strip()!r}; must be NAME:MILLISECONDS, "
                    f"each of {', '.join(names)} at most once"
                )
            found[name] = _positive(option, name, number)
        return cls(**found)

    def __str__(self) -> str:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return ", ".join(f"{name} <= {value:g} ms" for name, value in given.items())


def _positive(option: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{option} has {name}:{text}; must be milliseconds above 0")
    return value
