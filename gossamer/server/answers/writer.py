"""What chats and completions have in common when they are written."""

import time
from typing import Any, Protocol

from gossamer._version import __version__
from gossamer.server.answers.tally import Output, Tally
from gossamer.server.events import Event


class Writer(Protocol):
    """Makes the objects of one response."""

    id: str

    def opening(self, number: int) -> dict[str, Any] | None:
        """The chunk before the first of an output."""
        ...

    def chunk(self, number: int, event: Event, output: Output) -> dict[str, Any] | None:
        """What an event adds; None for nothing that can be shown."""
        ...

    def counts(self, tally: Tally) -> dict[str, Any]:
        """The last chunk, if it was asked for."""
        ...

    def whole(self, tally: Tally) -> dict[str, Any]:
        """The response that is not streamed."""
        ...


class Envelope:
    """The fields that are the same in all objects of a response."""

    def __init__(self, prefix: str, name: str, model: str) -> None:
        self.id = f"{prefix}-{name}"
        self._model, self._created = model, int(time.time())

    def __call__(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "system_fingerprint": f"gossamer-{__version__}",
            "choices": choices,
            **more,
        }
