"""The bodies of /tokenize and /detokenize."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from gossamer.server.schemas.base import Body, Text
from gossamer.server.schemas.chat import Messages
from gossamer.server.schemas.common import Token

MAX_TOKENS = 1 << 20


class TokenizeBody(Body):
    """Text, or messages, which go through the model's template."""

    model: Annotated[str, Field(max_length=200)] | None = None
    prompt: Text | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("must have prompt or messages, and not both")
        return self


class DetokenizeBody(Body):
    model: Annotated[str, Field(max_length=200)] | None = None
    tokens: Annotated[list[Token], Field(max_length=MAX_TOKENS, fail_fast=True)]
