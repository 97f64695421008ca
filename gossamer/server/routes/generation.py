"""/v1/chat/completions and /v1/completions."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from gossamer.engine import PromptTooLongError, SamplingParams
from gossamer.server.context import Context, context_of
from gossamer.server.conversation import Conversation, Structure, conversation
from gossamer.server.errors import APIError
from gossamer.server.gateway import Subscription
from gossamer.server.info import EngineInfo
from gossamer.server.keys import Key
from gossamer.server.output_text import Piece
from gossamer.server.responses.chat import ChatWriter
from gossamer.server.responses.common import ResponseState, Writer
from gossamer.server.responses.completion import CompletionWriter
from gossamer.server.schemas.chat import ChatBody
from gossamer.server.schemas.common import Generation
from gossamer.server.schemas.completions import CompletionBody
from gossamer.server.sse import EventStream, unless_disconnected

router = APIRouter(prefix="/v1")
Numbered = AsyncIterator[tuple[int, Piece]]


@router.post("/chat/completions")
async def chat(body: ChatBody, request: Request) -> Response:
    context = context_of(request)
    kv = await checked_kv(context, body)
    context.log_prompt([message.plain() for message in body.messages])
    asked = await conversation(context, body, context.gateway.engines[kv].max_model_len)
    writer = ChatWriter(
        context.request_id(request),
        body.model,
        context.gateway.tokens,
        asked.reading,
        logprobs=bool(body.logprobs),
    )
    return await respond(request, context, kv, body, Work.of_chat(asked), writer)


@router.post("/completions")
async def completions(body: CompletionBody, request: Request) -> Response:
    context = context_of(request)
    kv = await checked_kv(context, body)
    tokens, longest = context.gateway.tokens, context.gateway.engines[kv].max_model_len
    context.log_prompt(body.prompt)
    prompts = [await tokens.encode(p, longest) for p in body.prompts()]
    echoes = []
    if body.echo:
        texts = [p if isinstance(p, str) else await tokens.decode(p) for p in body.prompts()]
        echoes = list(zip(prompts, texts, strict=True))
    writer = CompletionWriter(
        context.request_id(request),
        body.model,
        tokens,
        logprobs=body.logprobs is not None,
        echoes=echoes,
        n=body.n or 1,
    )
    work = Work(prompts, Structure.of(body))
    return await respond(request, context, kv, body, work, writer)


async def checked_kv(context: Context, body: Generation) -> str:
    await context.check_model(body.model)
    return context.gateway.resolve_kv(body.kv)


@dataclass(frozen=True)
class Work:
    """What the engine has to do for a request; see Conversation."""

    prompts: list[tuple[int, ...]]
    structured: Structure | None
    shown: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of_chat(cls, asked: Conversation) -> "Work":
        return cls([asked.ids], asked.structured, asked.shown)


async def respond(
    request: Request,
    context: Context,
    kv: str,
    body: Generation,
    work: Work,
    writer: Writer,
    *,
    named: bool = False,
) -> Response:
    """The answer, or the stream of its events. named: see EventStream."""
    engine = context.gateway.engines[kv]
    key = context.key_of(request)
    params = _params(context, engine, body, work, key)
    subscription = context.gateway.submit(
        *(kv, work.prompts, params),
        shown=work.shown,
        lora=context.lora_of(body.model),
        use=None if key is None else key.use,
    )
    state = ResponseState(engine, kv, work.prompts, params.n)
    request.state.answer = (body.model, state)
    try:
        if not body.stream:
            await unless_disconnected(request, _collect(subscription, state))
            if params.n > (body.n or 1):
                state.keep_best(body.n or 1)
            return JSONResponse(writer.whole(state))
        # A failure before the first token is still a status of its own.
        pieces = aiter(subscription)
        first = await unless_disconnected(request, anext(pieces))
        chunks = _chunks(first, pieces, state, writer, body.include_usage)
        return EventStream(subscription, chunks, named=named)
    except APIError as error:
        subscription.abort()
        if error.status == 400 and work.structured is not None:  # the engine knows no fields
            error.param = error.param or work.structured.blamed(str(error))
        raise
    except BaseException:
        subscription.abort()
        raise


def _params(
    context: Context, engine: EngineInfo, body: Generation, work: Work, key: Key | None
) -> SamplingParams:
    """APIError for prompts that cannot be served and for fields that contradict each other."""
    try:
        longest = max(len(engine.checked(ids)) for ids in work.prompts)
    except ValueError as error:
        code = "context_length_exceeded" if isinstance(error, PromptTooLongError) else None
        raise APIError(400, str(error), param="prompt", code=code) from None
    limit = _limit(context, body, engine.max_model_len - longest, work, key)
    for token in body.logit_bias or ():
        if int(token) >= engine.vocab_size:
            message = f"logit_bias has token {token}; must be 0 to {engine.vocab_size - 1}"
            raise APIError(400, message, param="logit_bias")
    if work.structured is None:
        return body.params(limit)
    if body.ignore_eos:
        message = f"ignore_eos is true; must be false with {work.structured.field}"
        raise APIError(400, message, param="ignore_eos")
    return replace(body.params(limit), structured_outputs=work.structured.outputs)


def _limit(context: Context, body: Generation, room: int, work: Work, key: Key | None) -> int:
    """Of output tokens. room: in the context, after the longest prompt."""
    wanted, lengths = body.output_limit, [len(ids) for ids in work.prompts]
    if wanted is not None and body.max_tokens_given and wanted > room:
        raise APIError(
            400,
            f"max_tokens is {wanted}; must be 1 to {room} after a prompt of {max(lengths)} tokens",
            param="max_tokens",
            code="context_length_exceeded",
        )
    of_key = None if key is None else key.output_limit(sum(lengths), len(lengths), body.computed)
    most = _least(context.settings.limits.output_tokens, of_key)
    if most is not None and body.max_tokens_given and wanted is not None and wanted > most:
        raise APIError(400, f"max_tokens is {wanted}; must be 1 to {most}", param="max_tokens")
    limit = min(x for x in (room, wanted, most) if x is not None)
    least = body.min_tokens or 0
    if least > limit:
        message = f"min_tokens is {least}; must be 0 to max_tokens, {limit}"
        raise APIError(400, message, param="min_tokens")
    return limit


def _least(*limits: int | None) -> int | None:
    """None for no limit."""
    return min((limit for limit in limits if limit is not None), default=None)


async def _collect(subscription: Subscription, state: ResponseState) -> None:
    async for number, piece in subscription:
        state.add(number, piece)


async def _chunks(
    first: tuple[int, Piece], rest: Numbered, state: ResponseState, writer: Writer, usage: bool
) -> AsyncIterator[dict[str, Any]]:
    for number in range(len(state.outputs)):
        for opening in writer.opening(number):
            yield opening
    async for number, piece in _with(first, rest):
        state.add(number, piece)
        for chunk in writer.chunk(number, piece):
            yield chunk
    if usage:
        yield writer.usage(state)


async def _with(first: tuple[int, Piece], rest: Numbered) -> Numbered:
    yield first
    async for each in rest:
        yield each
