"""A request that is computed again elsewhere, as its replica ended.

It gives the same tokens there: the API gives a seed to requests that have none.
"""

from collections.abc import Iterable

from gossamer.server.events import Event


class DivergedError(Exception):
    """Another replica says something else: logits that are nearly equal, rounded otherwise."""


class Replay:
    """What the outputs of a request have said."""

    def __init__(self, outputs: int) -> None:
        self._said: list[list[int]] = [[] for _ in range(outputs)]
        self._at = [0] * outputs  # tokens of this attempt
        self._open = set(range(outputs))
        self.aborted: set[int] = set()

    @property
    def over(self) -> bool:
        """All outputs have ended, or were aborted."""
        return not self._open

    def abort(self, output: int) -> None:
        """Nobody wants to hear more of it."""
        self._open.discard(output)
        self.aborted.add(output)

    def again(self) -> None:
        """The next events are those of another replica, from the start."""
        self._at = [0] * len(self._at)

    def fresh(self, events: Iterable[Event]) -> list[Event]:
        """The events without what was said before. DivergedError if that is not the same."""
        found = (self._fresh(event) for event in events)
        return [event for event in found if event is not None]

    def _fresh(self, event: Event) -> Event | None:
        if event.failure is not None:  # of all outputs, whichever it names
            self._open.clear()
            return event
        if event.output not in self._open:
            return None
        said, at = self._said[event.output], self._at[event.output]
        known = min(len(said) - at, len(event.token_ids))
        if event.token_ids[:known] != said[at : at + known]:
            raise DivergedError
        self._at[event.output] += len(event.token_ids)
        said += event.token_ids[known:]
        if event.finish_reason is not None:
            self._open.discard(event.output)
        elif known == len(event.token_ids):
            return None
        return event._replace(token_ids=event.token_ids[known:], logprobs=event.logprobs[known:])
