"""SmolLM2: a list between tags. Its template knows no tools: the system message names them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gossamer.server.tool_parsers.base import ToolFormat

SMOLLM2 = ToolFormat(
    name="smollm2",
    marks=("<tool_call>[",),
    begin="<tool_call>",
    end="</tool_call>",
    opening="[",
    closing="]",
)

SYSTEM = """You can call functions. These are the functions, as a JSON list:
<tools>{tools}</tools>
To call some of them, answer with nothing but a JSON list between tags, in this form:
<tool_call>[{{"name": "function", "arguments": {{"argument": "value"}}}}]</tool_call>
If none of them helps, answer in plain words."""


def with_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], form: ToolFormat
) -> list[dict[str, Any]]:
    """Messages for any template: tools in the system message, calls and results as text."""
    told = SYSTEM.format(tools=json.dumps([tool["function"] for tool in tools]))
    first, *rest = [_plain(message, form) for message in messages]
    if first["role"] == "system":
        return [{**first, "content": f"{first['content']}\n\n{told}"}, *rest]
    return [{"role": "system", "content": told}, first, *rest]


def _plain(message: Mapping[str, Any], form: ToolFormat) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return {"role": message["role"], "content": message["content"]}
    functions = [call["function"] for call in calls]
    text = form.write([(each["name"], each["arguments"]) for each in functions])
    return {"role": message["role"], "content": (message.get("content") or "") + text}
