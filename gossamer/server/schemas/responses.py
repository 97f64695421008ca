"""The body of /v1/responses: a conversation as items, of which nothing is kept here."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from gossamer.engine.sampling_params import MAX_LOGPROBS, MAX_SEED
from gossamer.server.schemas.base import Body, Text
from gossamer.server.schemas.chat import MAX_MESSAGES, MAX_PARTS, ChatBody
from gossamer.server.schemas.common import Count, Metadata
from gossamer.server.schemas.formats import Schema
from gossamer.server.schemas.tools import MAX_TOOLS, Arguments, Id, Name

Status = Literal["in_progress", "completed", "incomplete"]
Part = dict[str, Any]
Included = Literal["message.output_text.logprobs"]


class InputText(Body):
    """output_text: of an answer that is sent back, with what the server said of it."""

    type: Literal["input_text", "output_text"]
    text: Text
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


Parts = Annotated[list[InputText], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)]


class InputMessage(Body):
    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Parts
    id: Id | None = None
    status: Status | None = None
    phase: Annotated[str, Field(max_length=64)] | None = None


class FunctionCall(Body):
    type: Literal["function_call"]
    call_id: Id
    name: Name
    arguments: Arguments
    id: Id | None = None
    status: Status | None = None


class FunctionCallOutput(Body):
    type: Literal["function_call_output"]
    call_id: Id
    output: Text | Parts
    id: Id | None = None
    status: Status | None = None


class Reasoning(Body):
    """Of an earlier answer; templates leave it out."""

    type: Literal["reasoning"]
    id: Id | None = None
    summary: list[Part] | None = None
    content: list[Part] | None = None
    encrypted_content: str | None = None
    status: Status | None = None


def _kind(item: Any) -> str:
    """Messages need not say that they are."""
    given = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return given if isinstance(given, str) else "message"


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")]
    | Annotated[Reasoning, Tag("reasoning")],
    Discriminator(_kind),
]


class FunctionTool(Body):
    """strict: arguments of calls that are required match the schema, whether it is set or not."""

    type: Literal["function"]
    name: Name
    description: Text | None = None
    parameters: Schema | None = None
    strict: bool | None = None

    def of_chats(self) -> dict[str, Any]:
        function = self.model_dump(exclude_unset=True, exclude={"type"})
        return {"type": "function", "function": function}


class NamedChoice(Body):
    type: Literal["function"]
    name: Name


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(max_length=64)] | None = None
    description: Text | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise ValueError(f"schema with type {self.type}; must be with type json_schema alone")
        return self

    def of_chats(self) -> dict[str, Any]:
        if self.type != "json_schema":
            return {"type": self.type}
        return {"type": self.type, "json_schema": {"name": "answer", "schema": self.schema_}}


class TextOptions(Body):
    format: TextFormat | None = None


class ResponsesBody(Body):
    """Fields of OpenAI's API that ask for something without a memory; then seed and cache."""

    model: Annotated[str, Field(max_length=200)]
    input: (
        Text | Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    )
    instructions: Text | None = None
    max_output_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    stream: bool | None = None
    text: TextOptions | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    include: (
        Annotated[list[Literal["message.output_text.logprobs"]], Field(max_length=1)] | None
    ) = None
    user: Annotated[str, Field(max_length=512)] | None = None
    metadata: Metadata | None = None
    service_tier: Annotated[str, Field(max_length=64)] | None = None
    store: Literal[False] | None = None
    safety_identifier: Annotated[str, Field(max_length=512)] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=512)] | None = None

    seed: Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED)] | None = None
    kv: Annotated[str, Field(max_length=200)] | None = None

    def as_chat(self) -> ChatBody:
        """The same request as a chat. ValidationError for what contradicts itself."""
        same = ("model", "temperature", "top_p", "stream", "parallel_tool_calls", "seed", "kv")
        given = {name: getattr(self, name) for name in same}
        form = self.text.format if self.text is not None else None
        if form is not None:
            given["response_format"] = form.of_chats()
        if self.tools:
            given["tools"] = [tool.of_chats() for tool in self.tools]
        choice = self.tool_choice
        if isinstance(choice, NamedChoice):
            given["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        elif choice is not None and (self.tools or choice == "required"):
            given["tool_choice"] = choice
        if self.top_logprobs is not None or self.include:
            given |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        if self.stream:
            given["stream_options"] = {"include_usage": True}
        given["max_tokens"] = self.max_output_tokens
        return ChatBody.model_validate({**given, "messages": self._messages()})

    def _messages(self) -> list[dict[str, Any]]:
        """Calls that follow each other are of one message."""
        messages: list[dict[str, Any]] = []
        if self.instructions is not None:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*messages, {"role": "user", "content": self.input}]
        for item in self.input:
            if isinstance(item, InputMessage):
                messages.append({"role": item.role, "content": _plain(item.content)})
            elif isinstance(item, FunctionCallOutput):
                content = _plain(item.output)
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
            elif isinstance(item, FunctionCall):
                if not (messages and messages[-1]["role"] == "assistant"):
                    messages.append({"role": "assistant", "content": None})
                function = {"name": item.name, "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                messages[-1].setdefault("tool_calls", []).append(call)
        return messages


def _plain(content: str | Sequence[InputText]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
