"""The body of /v1/chat/completions."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from gossamer.engine.sampling_params import MAX_LOGPROBS
from gossamer.server.schemas.base import Body, Text
from gossamer.server.schemas.common import Count, Generation
from gossamer.server.schemas.tools import (
    Function,
    Id,
    NamedTool,
    ToolCalls,
    ToolChoice,
    Tools,
    chosen,
)

MAX_MESSAGES = 4096
MAX_PARTS = 256


class TextPart(Body):
    type: Literal["text"]
    text: Text


Content = str | Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)]


class Message(Body):
    """What someone said. `name` is accepted and not used, as templates have no place for it; so
    are the other fields of answers that clients send back as they came."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: Annotated[str, Field(max_length=64)] | None = None
    tool_calls: ToolCalls | None = None
    tool_call_id: Id | None = None
    reasoning_content: Text | None = None
    refusal: Text | None = None

    @model_validator(mode="after")
    def _has_what_its_role_needs(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls in a message of {self.role}; must be the assistant's")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id; must be in messages of role tool, and in no others")
        if self.content is None and not self.tool_calls:
            raise ValueError("content is missing; must be text, or there must be tool_calls")
        return self

    def plain(self) -> dict[str, Any]:
        """As templates want it."""
        text = self.content or ""
        if not isinstance(text, str):
            text = "".join(part.text for part in text)
        found: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": text,
        }
        if self.tool_calls:
            found["tool_calls"] = [call.plain() for call in self.tool_calls]
        if self.tool_call_id is not None:
            found["tool_call_id"] = self.tool_call_id
        return found


Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class ChatBody(Generation):
    messages: Messages
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError(
                f"top_logprobs is {self.top_logprobs} without logprobs; must be with logprobs: true"
            )
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise ValueError(
                f"max_tokens is {old} and max_completion_tokens {new}; must be one of them"
            )
        self._check_tools()
        return self

    def _check_tools(self) -> None:
        if self.tool_choice not in (None, "none") and not self.tools:
            raise ValueError("tool_choice is there without tools; must be with tools")
        if isinstance(self.tool_choice, NamedTool) and not self.must_call:
            known = ", ".join(tool.function.name for tool in self.tools or [])
            name = self.tool_choice.function.name
            raise ValueError(f"tool_choice is {name!r}; must be one of the tools: {known}")
        if self.calls_tools and self.structured_outputs is not None:
            raise ValueError("structured_outputs with tools; must be response_format, or no tools")
        if self.must_call and self.answer_schema is not None:
            raise ValueError("response_format with a call that is required; must be one of them")

    @property
    def calls_tools(self) -> bool:
        """Whether an answer may have calls."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def must_call(self) -> list[Function]:
        """Functions of which an answer must call one."""
        return chosen(self.tools or [], self.tool_choice or "auto")

    @property
    def output_limit(self) -> int | None:
        return self.max_tokens if self.max_tokens is not None else self.max_completion_tokens

    @property
    def max_tokens_given(self) -> bool:
        return self.output_limit is not None

    @property
    def wanted_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
