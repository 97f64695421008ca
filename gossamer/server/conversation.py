"""A chat on its way to the engine: its prompt, what its answers must be, and how they are read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gossamer.engine import StructuredOutputs
from gossamer.engine.prompts import Encoded
from gossamer.server.context import Context
from gossamer.server.errors import APIError
from gossamer.server.message_stream import THINK, Reading
from gossamer.server.schemas.chat import ChatBody
from gossamer.server.schemas.common import Generation
from gossamer.server.tool_parsers import ToolFormat, format_of, takes_tools
from gossamer.server.tool_parsers.base import blamed
from gossamer.server.tool_parsers.smollm2 import with_tools


@dataclass(frozen=True)
class Structure:
    """What an answer must match. field: of the request, that errors are about; of_tools: those of
    the tools' schemas, where they are a part of the grammar."""

    outputs: StructuredOutputs
    field: str
    of_tools: tuple[str, ...] = ()

    def blamed(self, message: str) -> str:
        """The field that is to blame for an error of the engine."""
        tool = blamed(message)
        known = tool is not None and tool < len(self.of_tools)
        return self.of_tools[tool] if tool is not None and known else self.field

    @classmethod
    def of(cls, body: Generation) -> "Structure | None":
        """Of the fields that all requests have."""
        outputs = body.structured
        return None if outputs is None else cls(outputs, body.structured_by)


@dataclass(frozen=True)
class Conversation:
    """shown: special tokens that are text for `reading`."""

    ids: tuple[int, ...]
    reading: Reading
    shown: Mapping[int, str]
    structured: Structure | None


async def conversation(context: Context, body: ChatBody, longest: int) -> Conversation:
    """longest: tokens of the context. APIError for what the model's template cannot say."""
    tokens = context.gateway.tokens
    template = getattr(tokens.tokenizer, "chat_template", None)
    messages = [message.plain() for message in body.messages]
    tools = [tool.model_dump(exclude_unset=True) for tool in body.tools or []]
    tools = tools if body.calls_tools else []
    form = _form(template, context.settings.tool_parser) if tools else None
    said = any("tool_calls" in message for message in messages)
    if (tools or said) and not takes_tools(template):
        messages = with_tools(messages, tools, form or format_of(template))
        tools = []
    encoded = await tokens.render(messages, longest, tools or None)
    marks = (form.begin, form.end) if form is not None else ()
    special = tokens.special((*marks, *THINK))
    structured = _structured(body, form, special)
    return Conversation(
        encoded.ids,
        _reading(body, form, template, encoded, held=structured is not None),
        {token: mark for mark, token in special.items()},
        structured,
    )


def _form(template: Any, name: str | None) -> ToolFormat:
    try:
        return format_of(template, name)
    except ValueError as error:
        raise APIError(400, str(error), param="tools") from None


def _structured(
    body: ChatBody, form: ToolFormat | None, special: Mapping[str, int]
) -> Structure | None:
    required, schema = body.must_call, body.answer_schema
    if form is None or not (required or schema):
        return Structure.of(body)
    every = [tool.function for tool in body.tools or []]
    functions = required or every
    grammar = form.grammar(
        [(each.name, each.schema_of_arguments) for each in functions],
        several=body.parallel_tool_calls is not False,
        special=special,
        answer=schema,
    )
    fields = tuple(f"tools.{every.index(each)}.function.parameters" for each in functions)
    try:
        return Structure(StructuredOutputs(grammar=grammar), "tools", fields)
    except ValueError as error:
        raise APIError(400, f"tools are too large together: {error}", param="tools") from None


def _reading(
    body: ChatBody, form: ToolFormat | None, template: Any, encoded: Encoded, *, held: bool
) -> Reading:
    """held: by a grammar, which begins with the answer itself and not with reasoning."""
    thinks = THINK[1] in str(template or "") and not held
    return Reading(
        reasoning=thinks,
        opened=thinks and (encoded.text or "").rstrip().endswith(THINK[0]),
        tools=form,
        names=frozenset(tool.function.name for tool in body.tools or []),
        several=body.parallel_tool_calls is not False,
    )
