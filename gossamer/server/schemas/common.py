"""What chats and completions have in common."""

import secrets
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from gossamer.engine import SamplingParams, StructuredOutputs
from gossamer.engine.sampling_params import MAX_N, MAX_SEED, MAX_TOKENS
from gossamer.server.schemas.base import Body, valid_unicode
from gossamer.server.schemas.formats import ResponseFormat, Structured
from gossamer.server.settings import MAX_STOP_LENGTH, MAX_STOPS

MAX_STOP_IDS = 64
MAX_BIASES = 300

Token = Annotated[int, Field(ge=0, lt=1 << 31)]
Stop = Annotated[
    str, Field(min_length=1, max_length=MAX_STOP_LENGTH), AfterValidator(valid_unicode)
]
Count = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = Annotated[
    dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_BIASES),
]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
]


class StreamOptions(Body):
    include_usage: bool = False


class Generation(Body):
    """Fields of OpenAI's API, then those that users of vLLM know, then the cache."""

    model: Annotated[str, Field(max_length=200)]
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED)] | None = None
    logit_bias: Bias | None = None
    response_format: ResponseFormat | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    # Hints that OpenAI lets a server ignore; `store` only where it asks for nothing.
    metadata: Metadata | None = None
    service_tier: Annotated[str, Field(max_length=64)] | None = None
    store: Literal[False] | None = None
    safety_identifier: Annotated[str, Field(max_length=512)] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=512)] | None = None

    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: (
        Annotated[list[Token], Field(max_length=MAX_STOP_IDS, fail_fast=True)] | None
    ) = None
    include_stop_str_in_output: bool | None = None
    structured_outputs: Structured | None = None

    kv: Annotated[str, Field(max_length=200)] | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is there without stream; must be with stream: true")
        if self.answer_schema is not None and self.structured_outputs is not None:
            raise ValueError("response_format and structured_outputs; must be one of them")
        return self

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        """That response_format asks for."""
        return None if self.response_format is None else self.response_format.schema_of_answers

    @property
    def structured(self) -> StructuredOutputs | None:
        if self.structured_outputs is not None:
            return self.structured_outputs.outputs()
        schema = self.answer_schema
        return None if schema is None else StructuredOutputs(json=schema)

    @property
    def structured_by(self) -> str:
        """The field that an error of the grammar is about."""
        return "response_format" if self.structured_outputs is None else "structured_outputs"

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def computed(self) -> int:
        """Outputs that are computed for each prompt."""
        return self.n or 1

    @property
    def output_limit(self) -> int | None:
        """How many tokens were asked for at most."""
        return self.max_tokens

    @property
    def max_tokens_given(self) -> bool:
        """Whether the limit is the client's own, and so a promise to keep."""
        return self.max_tokens is not None

    @property
    def wanted_logprobs(self) -> int | None:
        """How many alternatives to report; None for no log probabilities at all."""
        raise NotImplementedError

    def params(self, limit: int) -> SamplingParams:
        """limit: of output tokens, at least min_tokens."""
        given: dict[str, Any] = {
            name: getattr(self, name) for name in SAME_NAMES if getattr(self, name) is not None
        }
        # The engine's own seeds begin anew with each start, and so would answers.
        given.setdefault("seed", secrets.randbelow(MAX_SEED))
        if self.logit_bias:
            given["logit_bias"] = {int(token): bias for token, bias in self.logit_bias.items()}
        return SamplingParams(**given, max_tokens=limit, logprobs=self.wanted_logprobs)


# Of SamplingParams, under the same name.
SAME_NAMES = (
    "temperature",
    "top_p",
    "n",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "include_stop_str_in_output",
)
