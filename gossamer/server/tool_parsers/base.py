"""A family's way to write tool calls: marks, JSON, and the grammar of calls that are required."""

import json
import re
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.engine.grammar_text import JSON_STYLE
from gossamer.engine.structured_outputs import bounded

MOST_CALLS = 16  # in one answer whose calls are required: a model must come to an end
LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True)
class ToolFormat:
    """Calls are JSON objects with `name` and `arguments` (the key of the arguments).

    marks: what its templates have, all of them. begin, end: around calls; an empty begin means that
    an answer is calls, or has none. together: whether all calls are between one begin and one end,
    else each has its own. opening, closing: around the calls, between begin and end. separator:
    between calls. id_length: of a call's id, 0 for OpenAI's own.
    """

    name: str
    marks: tuple[str, ...]
    begin: str = ""
    end: str = ""
    together: bool = True
    opening: str = ""
    closing: str = ""
    separator: str = ", "
    arguments: str = "arguments"
    id_length: int = 0

    def wrote(self, template: str) -> bool:
        return all(mark in template for mark in self.marks)

    def new_id(self) -> str:
        if self.id_length:
            return "".join(secrets.choice(LETTERS) for _ in range(self.id_length))
        return f"call_{secrets.token_hex(12)}"

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """As the model would: names and arguments, for templates that cannot."""
        objects = [json.dumps({"name": name, self.arguments: given}) for name, given in calls]
        if self.together:
            return self._around(self.separator.join(objects))
        return self.separator.join(map(self._around, objects))

    def grammar(
        self,
        tools: Sequence[tuple[str, Mapping[str, Any]]],
        *,
        several: bool,
        special: Mapping[str, int],
        answer: Mapping[str, Any] | None = None,
    ) -> str:
        """In Lark: calls of these tools (name, schema of the arguments), a line for each schema.

        special: ids of marks that are one token, which no text spells. answer: the schema of an
        answer without calls, if there may be one.
        """
        begin, end = (_terminal(mark, special) for mark in (self.begin, self.end))
        opening, closing, separator = map(_quoted, (self.opening, self.closing, self.separator))
        more = f"({{}} {{}}){{{{0,{MOST_CALLS - 1}}}}}" if several else ""
        if self.together:
            listed = "call " + more.format(separator, "call")
            calls = f"{begin} {opening} {listed} {closing} {end}"
        else:
            each = f"{begin} {opening} call {closing} {end}"
            calls = f"{each} " + more.format(separator, f"({each})")
        lines = [f"arguments_{i}: {_json(schema)}" for i, (_, schema) in enumerate(tools)]
        lines.append(f"start: calls{'' if answer is None else ' | answer'}")
        lines.append(f"calls: {calls}")
        lines.append("call: " + " | ".join(f"call_{i}" for i in range(len(tools))))
        for i, (name, _) in enumerate(tools):
            head = f'{{"name": {json.dumps(name)}, "{self.arguments}": '
            lines.append(f"call_{i}: {_quoted(head)} arguments_{i} {_quoted('}')}")
        if answer is not None:
            lines.append(f"answer: {_json(answer)}")
        return "\n".join(lines)

    def _around(self, calls: str) -> str:
        return f"{self.begin}{self.opening}{calls}{self.closing}{self.end}"


def blamed(message: str) -> int | None:
    """Which of the tools of a `grammar` an error is about: their schemas are its first lines."""
    found = re.match(r"grammar: at (\d+)\(", message)
    return None if found is None else int(found[1]) - 1


def _terminal(mark: str, special: Mapping[str, int]) -> str:
    return f"<[{special[mark]}]>" if mark in special else _quoted(mark)


def _quoted(text: str) -> str:
    return json.dumps(text) if text else ""


def _json(schema: Mapping[str, Any]) -> str:
    return "%json " + json.dumps({**bounded(schema), "x-guidance": JSON_STYLE})
