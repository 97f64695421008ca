"""/v1/chat/completions and /v1/completions."""

import logging
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from gossamer.engine import Engine, SamplingParams
from gossamer.server.answers.chat import ChatWriter
from gossamer.server.answers.completion import CompletionWriter
from gossamer.server.answers.tally import Tally
from gossamer.server.answers.writer import Writer
from gossamer.server.context import Context, context_of
from gossamer.server.errors import APIError
from gossamer.server.events import Event
from gossamer.server.gateway import Ticket
from gossamer.server.schemas.chat import ChatBody
from gossamer.server.schemas.common import Generation
from gossamer.server.schemas.completions import CompletionBody
from gossamer.server.sse import EventStream, unless_gone

router = APIRouter(prefix="/v1")
log = logging.getLogger("gossamer.server")
Numbered = AsyncIterator[tuple[int, Event]]


@router.post("/chat/completions")
async def chat(body: ChatBody, request: Request) -> Response:
    context = context_of(request)
    lane = _checked_lane(context, body)
    engine = context.gateway.engines[lane]
    messages = [message.plain() for message in body.messages]
    context.log_prompt(messages)
    ids = await context.gateway.tokens.encode(messages, engine.built.max_model_len)
    writer = ChatWriter(
        context.request_id(request),
        context.settings.model,
        context.gateway.tokens,
        logprobs=bool(body.logprobs),
    )
    return await _answer(request, context, lane, body, [ids], writer)


@router.post("/completions")
async def completions(body: CompletionBody, request: Request) -> Response:
    context = context_of(request)
    lane = _checked_lane(context, body)
    longest = context.gateway.engines[lane].built.max_model_len
    context.log_prompt(body.prompt)
    prompts = [await context.gateway.tokens.encode(p, longest) for p in body.prompts()]
    writer = CompletionWriter(
        context.request_id(request),
        context.settings.model,
        context.gateway.tokens,
        logprobs=body.logprobs is not None,
    )
    return await _answer(request, context, lane, body, prompts, writer)


def _checked_lane(context: Context, body: Generation) -> str:
    context.check_model(body.model)
    return context.gateway.lane(body.kv)


async def _answer(
    request: Request,
    context: Context,
    lane: str,
    body: Generation,
    prompts: list[tuple[int, ...]],
    writer: Writer,
) -> Response:
    engine = context.gateway.engines[lane]
    params = _params(context, engine, body, prompts)
    ticket = context.gateway.open(lane, prompts, params)
    tally = Tally(engine, lane, prompts, params.n)
    try:
        if not body.stream:
            await unless_gone(request, _collect(ticket, tally))
            return JSONResponse(writer.whole(tally))
        # A failure before the first token is still a status of its own.
        events = aiter(ticket)
        first = await unless_gone(request, anext(events))
        return EventStream(ticket, _chunks(first, events, tally, writer, body.include_usage))
    except BaseException:
        ticket.abort()
        raise


def _params(
    context: Context, engine: Engine, body: Generation, prompts: list[tuple[int, ...]]
) -> SamplingParams:
    """APIError for prompts that cannot be served and for fields that contradict each other."""
    try:
        longest = max(len(engine.checked(ids)) for ids in prompts)
    except ValueError as error:
        code = "context_length_exceeded" if "tokens; must have" in str(error) else None
        raise APIError(400, str(error), param="prompt", code=code) from None
    room, wanted = engine.built.max_model_len - longest, body.output_limit
    if wanted is not None and body.max_tokens_given and wanted > room:
        raise APIError(
            400,
            f"max_tokens is {wanted}; must be 1 to {room} after a prompt of {longest} tokens",
            param="max_tokens",
            code="context_length_exceeded",
        )
    most = context.settings.limits.output_tokens
    if most is not None and body.max_tokens_given and wanted is not None and wanted > most:
        raise APIError(400, f"max_tokens is {wanted}; must be 1 to {most}", param="max_tokens")
    limit = min(x for x in (room, wanted, most) if x is not None)
    try:
        return body.params(limit)
    except (ValueError, TypeError) as error:
        raise APIError(400, str(error), param=str(error).split()[0]) from None


async def _collect(ticket: Ticket, tally: Tally) -> None:
    async for number, event in ticket:
        tally.add(number, event)


async def _chunks(
    first: tuple[int, Event], rest: Numbered, tally: Tally, writer: Writer, usage: bool
) -> AsyncIterator[dict[str, Any]]:
    for number in range(len(tally.outputs)):
        opening = writer.opening(number)
        if opening is not None:
            yield opening
    async for number, event in _with(first, rest):
        chunk = writer.chunk(number, event, tally.add(number, event))
        if chunk is not None:
            yield chunk
    if usage:
        yield writer.counts(tally)


async def _with(first: tuple[int, Event], rest: Numbered) -> Numbered:
    yield first
    async for each in rest:
        yield each
