"""One tool call as it is written: the name, and the text of its arguments as it comes."""

import json
from typing import Literal

State = Literal["key", "colon", "value", "comma", "over", "broken"]


class CallScanner:
    """A JSON object with a name and arguments, character by character.

    raw: all of it so far. name: once it is known. Arguments are handed on as they are written,
    valid or not; `broken` is an object that cannot be a call.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self.raw = ""
        self.name: str | None = None
        self._state: State = "key"
        self._depth, self._string, self._escaped = 0, False, False
        self._field, self._word = "", ""
        self._waiting = ""  # arguments that nobody has taken

    @property
    def over(self) -> bool:
        return self._state == "over"

    @property
    def broken(self) -> bool:
        return self._state == "broken"

    def take(self) -> str:
        """What came of the arguments since the last time; nothing before the name is known."""
        if self.name is None:
            return ""
        taken, self._waiting = self._waiting, ""
        return taken

    def feed(self, character: str) -> None:
        """Must not be over."""
        self.raw += character
        if self._string:
            self._in_string(character)
        elif character == '"':
            self._string = True
            self._begin_string()
        elif character in "{[":
            self._open(character)
        elif character in "}]":
            self._close(character)
        elif self._depth > 1:
            self._keep(character)
        else:
            self._between(character)

    def _in_string(self, character: str) -> None:
        self._keep(character)
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._string = False
            if self._depth == 1:
                self._end_string()

    def _begin_string(self) -> None:
        if self._depth == 1 and self._state not in ("key", "value"):
            self._state = "broken"
        elif self._depth == 1:
            self._word = ""
        self._keep('"')

    def _end_string(self) -> None:
        if self._state == "key":
            self._field, self._state = _decoded(self._word), "colon"
        elif self._state == "value":
            if self._field == "name":
                self.name = _decoded(self._word)
            self._state = "comma"

    def _open(self, character: str) -> None:
        self._depth += 1
        if self._depth == 1:
            return
        if self._depth == 2 and self._state != "value":
            self._state = "broken"
        self._keep(character)

    def _close(self, character: str) -> None:
        self._keep(character)
        self._depth -= 1
        if self._depth == 1:
            self._state = "comma"
        elif self._depth == 0:
            self._state = "over" if self.name is not None else "broken"

    def _between(self, character: str) -> None:
        """At the level of name and arguments, outside of strings."""
        if character.isspace():
            return
        if character == ":" and self._state == "colon":
            self._state = "value"
        elif character == "," and self._state in ("comma", "value"):
            self._state = "key"
        elif self._state == "value":  # null, a number
            self._keep(character)
        else:
            self._state = "broken"

    def _keep(self, character: str) -> None:
        if self._state in ("key", "value") and self._depth == 1:
            self._word += character
        closes = self._depth == 1 and character in "}]"  # the object itself
        if self._state == "value" and self._field == self._key and not closes:
            self._waiting += character


def _decoded(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return text.strip('"')
