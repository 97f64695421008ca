"""Peers in one line: `name:number[,option=value]`, as in `kivi:4` or `snapkv:0.25,window=64`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gossamer.ops.checks import one_of

Number = int | float


@dataclass(frozen=True)
class PeerSpec:
    """text: the spec. name: the method. number: what follows the colon. options: the rest."""

    text: str
    name: str
    number: Number | None
    options: Mapping[str, str]

    def arguments(self, numbers: type[Number] | None, options: Mapping[str, type]) -> list[Any]:
        """The number and the given options, converted; ValueError for what does not belong.

        Returns [number (unless `numbers` is None), {option: value}].
        """
        for key in self.options:
            if not options:
                raise ValueError(f"option {key!r}; {self.name} has none")
            one_of("option", key, options)
        given = {key: _convert(key, text, options[key]) for key, text in self.options.items()}
        if numbers is None:
            if self.number is not None:
                raise ValueError(f"{self.name} is followed by {self.number}; must stand alone")
            return [given]
        if self.number is None:
            raise ValueError(f"{self.name} stands alone; must be followed by a number, as in :4")
        if numbers is int and not isinstance(self.number, int):
            raise ValueError(f"{self.name} is followed by {self.number}; must be an integer")
        return [self.number, given]


def parse_spec(text: str, names: Mapping[str, Any]) -> PeerSpec:
    """Raises ValueError for an unknown name and for anything that is not of the form above."""
    head, *rest = text.strip().split(",")
    name, colon, number = head.partition(":")
    one_of("peer", name, names)
    options: dict[str, str] = {}
    for item in rest:
        key, equals, value = item.partition("=")
        if not (key and equals and value):
            raise ValueError(f"{item!r} is not option=value")
        if key in options:
            raise ValueError(f"option {key!r} is there twice; must be there once")
        options[key] = value
    return PeerSpec(text.strip(), name, _number(number) if colon else None, options)


def _number(text: str) -> Number:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise ValueError(f"{text!r} is not a number")


def _convert(key: str, text: str, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"option {key} is {text!r}; must be an integer") from None
