"""/v1/chat/completions and /v1/completions."""

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from gossamer.engine import PromptTooLongError, SamplingParams
from gossamer.server.context import Context, context_of
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
    kv = await _checked_kv(context, body)
    engine = context.gateway.engines[kv]
    messages = [message.plain() for message in body.messages]
    context.log_prompt(messages)
    ids = await context.gateway.tokens.encode(messages, engine.max_model_len)
    writer = ChatWriter(
        context.request_id(request),
        body.model,
        context.gateway.tokens,
        logprobs=bool(body.logprobs),
    )
    return await _respond(request, context, kv, body, [ids], writer)


@router.post("/completions")
async def completions(body: CompletionBody, request: Request) -> Response:
    context = context_of(request)
    kv = await _checked_kv(context, body)
    longest = context.gateway.engines[kv].max_model_len
    context.log_prompt(body.prompt)
    prompts = [await context.gateway.tokens.encode(p, longest) for p in body.prompts()]
    writer = CompletionWriter(
        context.request_id(request),
        body.model,
        context.gateway.tokens,
        logprobs=body.logprobs is not None,
    )
    return await _respond(request, context, kv, body, prompts, writer)


async def _checked_kv(context: Context, body: Generation) -> str:
    await context.check_model(body.model)
    return context.gateway.resolve_kv(body.kv)


async def _respond(
    request: Request,
    context: Context,
    kv: str,
    body: Generation,
    prompts: list[tuple[int, ...]],
    writer: Writer,
) -> Response:
    engine = context.gateway.engines[kv]
    key = context.key_of(request)
    params = _params(context, engine, body, prompts, key)
    lora, use = context.lora_of(body.model), None if key is None else key.use
    subscription = context.gateway.submit(kv, prompts, params, lora=lora, use=use)
    state = ResponseState(engine, kv, prompts, params.n)
    request.state.answer = (body.model, state)
    try:
        if not body.stream:
            await unless_disconnected(request, _collect(subscription, state))
            return JSONResponse(writer.whole(state))
        # A failure before the first token is still a status of its own.
        pieces = aiter(subscription)
        first = await unless_disconnected(request, anext(pieces))
        return EventStream(subscription, _chunks(first, pieces, state, writer, body.include_usage))
    except BaseException:
        subscription.abort()
        raise


def _params(
    context: Context,
    engine: EngineInfo,
    body: Generation,
    prompts: list[tuple[int, ...]],
    key: Key | None,
) -> SamplingParams:
    """APIError for prompts that cannot be served and for fields that contradict each other."""
    try:
        longest = max(len(engine.checked(ids)) for ids in prompts)
    except ValueError as error:
        code = "context_length_exceeded" if isinstance(error, PromptTooLongError) else None
        raise APIError(400, str(error), param="prompt", code=code) from None
    room, wanted = engine.max_model_len - longest, body.output_limit
    if wanted is not None and body.max_tokens_given and wanted > room:
        raise APIError(
            400,
            f"max_tokens is {wanted}; must be 1 to {room} after a prompt of {longest} tokens",
            param="max_tokens",
            code="context_length_exceeded",
        )
    most = _least(
        context.settings.limits.output_tokens,
        None
        if key is None
        else key.output_limit(sum(map(len, prompts)), len(prompts), body.n or 1),
    )
    if most is not None and body.max_tokens_given and wanted is not None and wanted > most:
        raise APIError(400, f"max_tokens is {wanted}; must be 1 to {most}", param="max_tokens")
    limit = min(x for x in (room, wanted, most) if x is not None)
    least = body.min_tokens or 0
    if least > limit:
        message = f"min_tokens is {least}; must be 0 to max_tokens, {limit}"
        raise APIError(400, message, param="min_tokens")
    return body.params(limit)


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
        opening = writer.opening(number)
        if opening is not None:
            yield opening
    async for number, piece in _with(first, rest):
        state.add(number, piece)
        chunk = writer.chunk(number, piece)
        if chunk is not None:
            yield chunk
    if usage:
        yield writer.usage(state)


async def _with(first: tuple[int, Piece], rest: Numbered) -> Numbered:
    yield first
    async for each in rest:
        yield each
