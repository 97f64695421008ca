"""Who may wait for an engine: a bounded queue for all API processes together."""

import math
import threading
from collections.abc import Mapping

from gossamer.server.events import Failure

LONGEST_RETRY = 60  # seconds
SMOOTHING = 0.1  # weight of the latest request in the mean duration


class Admission:
    """Counts sequences that run or wait, by engine. Any thread may call.

    batches: sequences that run at once; queue: how many more may wait.
    """

    def __init__(self, batches: Mapping[str, int], queue: int) -> None:
        self._batches, self._queue = dict(batches), queue
        self._active = dict.fromkeys(batches, 0)
        self._duration = 1.0
        self._lock = threading.Lock()

    @property
    def in_flight(self) -> int:
        """Sequences that are not finished."""
        return sum(self._active.values())

    def enter(self, kv: str, count: int) -> Failure | None:
        """Take so many places, or none: then why not."""
        with self._lock:
            active, room = self._active[kv], self._batches[kv] + self._queue
            if active + count <= room:
                self._active[kv] += count
                return None
            message = (
                f"{active} sequences run or wait; must be at most {room} with the {count} of this "
                "request"
            )
            return Failure(message, 429, "queue_full", self._retry_after(kv))

    def leave(self, kv: str, count: int) -> None:
        """Give places back."""
        with self._lock:
            self._active[kv] -= count

    def took(self, seconds: float) -> None:
        """A request was finished, after so long."""
        self._duration += SMOOTHING * (seconds - self._duration)

    def _retry_after(self, kv: str) -> int:
        """When about half of the queue will be gone."""
        seconds = self._duration * max(1.0, self._active[kv] / self._batches[kv]) / 2
        return max(1, min(LONGEST_RETRY, math.ceil(seconds)))
