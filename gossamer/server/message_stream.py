"""An answer's text as its parts, while it is written: reasoning, content, tool calls."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gossamer.server.call_scanner import CallScanner
from gossamer.server.tool_parsers.base import ToolFormat

THINK = ("<think>", "</think>")
BETWEEN_CALLS = " \t\r\n,;[]"


class Part(NamedTuple):
    """What is new. call: counted from 0; of kind `call` the text is the function's name."""

    kind: Literal["reasoning", "content", "call", "arguments"]
    text: str
    call: int = 0


@dataclass(frozen=True)
class Reading:
    """How the answers of a request are read.

    reasoning: whether the template has tags for it; opened: whether the prompt ends in one. tools:
    the form of calls, None where there are none; names: of the functions; several: whether calls
    after the first are wanted.
    """

    reasoning: bool = False
    opened: bool = False
    tools: ToolFormat | None = None
    names: Collection[str] = ()
    several: bool = True


class MessageStream:
    """Of one answer. What may be the beginning of a mark waits until it is clear."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._tools = None if reading.tools is None else _Calls(reading, reading.tools)
        self._held = ""
        self._thinking, self._begun = reading.opened, not reading.reasoning
        self._fresh = True  # nothing of the present part was shown, so whitespace is not either

    @property
    def calls(self) -> int:
        """How many there were."""
        return 0 if self._tools is None else self._tools.count

    def feed(self, text: str, *, last: bool = False) -> list[Part]:
        """last: whether this is the end of the answer, so nothing waits any longer."""
        text, self._held = self._held + text, ""
        parts: list[Part] = []
        if not self._begun:
            text = self._begin(text, last)
        if self._thinking:
            text = self._think(text, last, parts)
        if text or last:
            self._say(text, last, parts)
        return parts

    def _begin(self, text: str, last: bool) -> str:
        """Whether the answer begins with reasoning; returns what is left to read."""
        if self._thinking:
            self._begun = True
            return text
        start = text.lstrip()
        if start.startswith(THINK[0]):
            self._begun = self._thinking = True
            return start[len(THINK[0]) :]
        if not last and THINK[0].startswith(start):
            self._held = text
            return ""
        self._begun = True
        return text

    def _think(self, text: str, last: bool, parts: list[Part]) -> str:
        end = text.find(THINK[1])
        keep = 0 if last or end >= 0 else overlap(text, THINK[1])
        said = text[:end] if end >= 0 else text[: len(text) - keep]
        if self._fresh:
            said = said.lstrip()
        if said:
            self._fresh = False
            parts.append(Part("reasoning", said))
        if end < 0:
            self._held = text[len(text) - keep :]
            return ""
        self._thinking, self._fresh = False, True
        return text[end + len(THINK[1]) :]

    def _say(self, text: str, last: bool, parts: list[Part]) -> None:
        if self._reading.reasoning and self._fresh:
            text = text.lstrip()
            self._fresh = not text
        if self._tools is not None:
            parts += self._tools.feed(text, last)
        elif text:
            parts.append(Part("content", text))


class _Calls:
    """Content and calls. Mode: content; calls, between begin and end; over, all is content."""

    def __init__(self, reading: Reading, form: ToolFormat) -> None:
        self._reading, self._form = reading, form
        self._mode: Literal["content", "calls", "over"] = "content" if form.begin else "calls"
        self._held = ""
        self._call: CallScanner | None = None
        self._before = ""  # what stands before the first, which may turn out to be no call
        self._latest: CallScanner | None = None  # the last that has a name
        self._told = False  # whether there was one since the begin
        self._blank = False  # blanks after a call are no content
        self.count = 0

    def feed(self, text: str, last: bool) -> list[Part]:
        text, self._held = self._held + text, ""
        parts: list[Part] = []
        while text:
            if self._mode == "content":
                text = self._read_content(text, last, parts)
            elif self._mode == "calls":
                text = self._read_calls(text, last, parts)
            else:
                text = _content(parts, text)
        if last and self._mode == "calls" and not self._told:  # cut off before there was a name
            raw = "" if self._call is None else self._call.raw
            _content(parts, self._form.begin + self._before + raw)
        return _joined(parts)

    def _read_content(self, text: str, last: bool, parts: list[Part]) -> str:
        """Up to where calls begin; returns what is left to read."""
        if self._blank:
            text = text.lstrip()
            self._blank = not text
        begin = self._form.begin
        at = text.find(begin)
        if at >= 0:
            self._mode, self._told = "calls", False
            _content(parts, text[:at])
            return text[at + len(begin) :]
        shown = len(text) - (0 if last else overlap(text, begin))
        self._held = text[shown:]
        return _content(parts, text[:shown])

    def _read_calls(self, text: str, last: bool, parts: list[Part]) -> str:
        if self._call is not None:
            return self._scan(self._call, text, parts)
        rest, end = text.lstrip(BETWEEN_CALLS), self._form.end
        if end and rest.startswith(end):
            self._mode, self._blank = "content", self.count > 0
            if not self._told:  # there was nothing in between
                _content(parts, f"{self._form.begin}{text[: len(text) - len(rest)]}{end}")
            return rest[len(end) :]
        if rest.startswith("{"):
            self._call = CallScanner(self._form.arguments)
            self._before = "" if self.count else text[: len(text) - len(rest)]
            return rest
        if not last and (not rest or (end and end.startswith(rest))):
            self._held = text
            return ""
        return self._give_up(rest if self.count else text, parts)

    def _scan(self, call: CallScanner, text: str, parts: list[Part]) -> str:
        used = 0
        while used < len(text) and not (call.over or call.broken):
            call.feed(text[used])
            used += 1
        # Where nothing else marks a call, any JSON could be one.
        known = bool(self._form.begin) or call.name in self._reading.names
        if (call.broken and call.name is None) or (call.name is not None and not known):
            return self._give_up(self._before + call.raw + text[used:], parts)
        if call.name is not None:
            self._tell(call, call.name, parts)
        if call.over or call.broken:
            self._call = None
        return text[used:]

    def _tell(self, call: CallScanner, name: str, parts: list[Part]) -> None:
        self._told = True
        if call is not self._latest:
            if self.count and not self._reading.several:
                return
            self._latest = call
            parts.append(Part("call", name, self.count))
            self.count += 1
        arguments = call.take()
        if arguments:
            parts.append(Part("arguments", arguments, self.count - 1))

    def _give_up(self, text: str, parts: list[Part]) -> str:
        """It is no call, so it is content, and so is what follows."""
        self._mode, self._call = "over", None
        return _content(parts, text if self.count else self._form.begin + text)


def _content(parts: list[Part], text: str) -> str:
    """All of it; nothing is left to read."""
    if text:
        parts.append(Part("content", text))
    return ""


def _joined(parts: list[Part]) -> list[Part]:
    """Neighbours of one kind as one."""
    found: list[Part] = []
    for part in parts:
        before = found[-1] if found else None
        same = before is not None and (before.kind, before.call) == (part.kind, part.call)
        if before is not None and same and part.kind != "call":
            found[-1] = before._replace(text=before.text + part.text)
        else:
            found.append(part)
    return found


def overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
