"""What API keys have used in the last minute, for all API processes together."""

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from gossamer.server.events import Failure
from gossamer.server.keys import Use

MINUTE = 60.0
TICK = 0.25  # seconds that are counted together, so that a key takes little memory
CODE = "rate_limit_exceeded"


class Ticket(NamedTuple):
    """Tokens that were reserved for a request, and when."""

    key: str
    tick: int


@dataclass
class Window:
    """Amounts of the last minute: [tick, amount], oldest first."""

    entries: deque[list[int]] = field(default_factory=deque)
    total: int = 0

    def forget(self, now: float) -> None:
        """What is a minute old, counted from the end of its tick."""
        while self.entries and (self.entries[0][0] + 1) * TICK + MINUTE <= now:
            self.total -= self.entries.popleft()[1]

    def wait(self, amount: int, limit: int | None, now: float) -> float:
        """Seconds until there is room for so much more."""
        if limit is None or self.total + amount <= limit:
            return 0.0
        left = self.total
        for tick, used in self.entries:
            left -= used
            if left + amount <= limit:
                return (tick + 1) * TICK + MINUTE - now
        return MINUTE

    def add(self, tick: int, amount: int) -> None:
        if not self.entries or self.entries[-1][0] != tick:
            self.entries.append([tick, 0])
        self.entries[-1][1] += amount
        self.total += amount

    def give_back(self, tick: int, amount: int) -> None:
        """Unless it is forgotten already."""
        for entry in self.entries:
            if entry[0] == tick:
                entry[1] -= amount
                self.total -= amount


class Rates:
    """Limits hold in every minute, not on average: what may be used counts until it is known.

    A request counts with the tokens of its prompts and as many as its outputs may have; what these
    did not need is given back at its end. Any thread may call.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._requests: defaultdict[str, Window] = defaultdict(Window)
        self._tokens: defaultdict[str, Window] = defaultdict(Window)

    def enter(self, use: Use, tokens: int) -> Ticket | Failure:
        """Count a request, or say why it has to wait."""
        with self._lock:
            now = self._clock()
            sides = (
                ("requests", self._requests[use.key], 1, use.requests),
                ("tokens", self._tokens[use.key], tokens, use.tokens),
            )
            for what, window, amount, limit in sides:
                window.forget(now)
                seconds = window.wait(amount, limit, now)
                if seconds > 0:
                    return _refusal(what, window.total, amount, limit, seconds)
            tick = int(now / TICK)
            for _, window, amount, limit in sides:
                if limit is not None:
                    window.add(tick, amount)
            return Ticket(use.key, tick)

    def give_back(self, ticket: Ticket, tokens: int) -> None:
        """Tokens that a request did not need."""
        with self._lock:
            self._tokens[ticket.key].give_back(ticket.tick, tokens)


def _refusal(what: str, used: int, amount: int, limit: int | None, seconds: float) -> Failure:
    """Of what can be had later: 429. OpenAI's clients come back when it says."""
    if limit is not None and amount > limit:
        message = f"the request may take {amount} {what}; the API key has {limit} per minute"
        return Failure(message, 400, CODE)
    message = (
        f"the API key has used {used} of its {limit} {what} per minute, and this request may take "
        f"{amount}"
    )
    return Failure(message, 429, CODE, max(1, math.ceil(seconds)))
