"""The body of /v1/chat/completions."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gossamer.server.schemas.common import (
    MAX_LOGPROBS,
    Body,
    Count,
    Generation,
    ResponseFormat,
    Text,
)

MAX_MESSAGES = 4096
MAX_PARTS = 256


class TextPart(Body):
    type: Literal["text"]
    text: Text


class Message(Body):
    """What someone said; `name` is accepted and not used, as templates have no place for it."""

    role: Literal["system", "developer", "user", "assistant"]
    content: (
        str | Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)]
    )
    name: Annotated[str, Field(max_length=64)] | None = None

    def plain(self) -> dict[str, str]:
        """As templates want it."""
        text = self.content
        if not isinstance(text, str):
            text = "".join(part.text for part in text)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class ChatBody(Generation):
    messages: Messages
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None

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
        return self

    @property
    def output_limit(self) -> int | None:
        return self.max_tokens if self.max_tokens is not None else self.max_completion_tokens

    @property
    def max_tokens_given(self) -> bool:
        return self.output_limit is not None

    @property
    def wanted_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
