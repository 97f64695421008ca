"""Tools and their calls, as chats and responses have them."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from gossamer.server.schemas.base import Body, Text, valid_unicode
from gossamer.server.schemas.formats import Schema

MAX_TOOLS = 128
MAX_CALLS = 128  # of one message
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
Id = Annotated[str, Field(max_length=128), AfterValidator(valid_unicode)]


def _object(text: str) -> str:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"arguments do not parse: {error}; must be a JSON object") from None
    if not isinstance(found, dict):
        raise ValueError(f"arguments are {text[:40]}; must be a JSON object")
    return text


Arguments = Annotated[Text, AfterValidator(_object)]


class Function(Body):
    """strict: arguments of calls that are required match the schema, whether it is set or not."""

    name: Name
    description: Text | None = None
    parameters: Schema | None = None
    strict: bool | None = None

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        return self.parameters or {"type": "object", "properties": {}}


class Tool(Body):
    type: Literal["function"]
    function: Function


def unique(tools: list[Tool]) -> list[Tool]:
    """ValueError for two of one name."""
    seen: dict[str, int] = {}
    for i, tool in enumerate(tools):
        name = tool.function.name
        if name in seen:
            raise ValueError(f"tools {seen[name]} and {i} are both {name!r}; must have other names")
        seen[name] = i
    return tools


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True), AfterValidator(unique)]


class NamedFunction(Body):
    name: Name


class NamedTool(Body):
    """tool_choice: this one."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class CalledFunction(Body):
    name: Name
    arguments: Arguments


class ToolCall(Body):
    """Of an assistant's message."""

    id: Id
    type: Literal["function"]
    function: CalledFunction

    def plain(self) -> dict[str, Any]:
        """As templates want it: arguments are an object, which they write themselves."""
        called = self.function
        function = {"name": called.name, "arguments": json.loads(called.arguments)}
        return {"id": self.id, "type": "function", "function": function}


ToolCalls = Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)]


def chosen(tools: Sequence[Tool], choice: str | NamedTool) -> list[Function]:
    """The functions of which one must be called; none unless the choice says so."""
    functions = [tool.function for tool in tools]
    if isinstance(choice, NamedTool):
        return [each for each in functions if each.name == choice.function.name]
    return functions if choice == "required" else []
