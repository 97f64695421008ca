"""The body of /v1/completions."""

from typing import Annotated, Any

from pydantic import Field

from gossamer.server.schemas.common import Generation, Text, Token

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
