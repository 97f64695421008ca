"""The body of /v1/completions."""

from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from gossamer.engine import SamplingParams
from gossamer.engine.sampling_params import MAX_N
from gossamer.server.schemas.base import Text
from gossamer.server.schemas.common import Generation, Token

MAX_PROMPTS = 128
DEFAULT_TOKENS = 16  # OpenAI's
MAX_LOGPROBS = 5  # OpenAI's; chats have their own

# fail_fast: a list with a million mistakes has one error.
Tokens = Annotated[list[Token], Field(min_length=1, fail_fast=True)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
TokenLists = Annotated[list[Tokens], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]


class CompletionBody(Generation):
    """prompt: text or token ids, or a list of them."""

    # Left to right: a long list is looked at once if it is one of the first.
    prompt: Annotated[Text | Tokens | Texts | TokenLists, Field(union_mode="left_to_right")]
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_N)] | None = None

    @model_validator(mode="after")
    def _fits_best_of(self) -> Self:
        if self.best_of is not None and self.best_of < (self.n or 1):
            raise ValueError(f"best_of is {self.best_of}; must be at least n, {self.n or 1}")
        if self.best_of is not None and self.best_of > (self.n or 1) and self.stream:
            raise ValueError(f"best_of is {self.best_of} with stream; must be n, or no stream")
        return self

    def params(self, limit: int) -> SamplingParams:
        params = super().params(limit)
        if self.echo and self.logprobs is not None:
            params = replace(params, prompt_logprobs=True)
        if self.best_of is not None and self.best_of > params.n:
            # Which ones are best is a matter of their log probabilities.
            params = replace(params, n=self.best_of, logprobs=params.logprobs or 0)
        return params

    @property
    def computed(self) -> int:
        return self.best_of or self.n or 1

    @property
    def output_limit(self) -> int | None:
        return DEFAULT_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        return self.logprobs

    def prompts(self) -> list[str | list[int]]:
        """One by one."""
        given: Any = self.prompt
        return [given] if isinstance(given, str) or isinstance(given[0], int) else given
