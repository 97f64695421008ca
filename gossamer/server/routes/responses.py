"""/v1/responses: a chat as items and events; nothing is stored."""

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response

from gossamer.server.context import context_of
from gossamer.server.conversation import conversation
from gossamer.server.errors import invalid
from gossamer.server.responses.response import ResponseWriter
from gossamer.server.routes.generation import Work, checked_kv, respond
from gossamer.server.schemas.responses import ResponsesBody

router = APIRouter(prefix="/v1")


@router.post("/responses")
async def responses(body: ResponsesBody, request: Request) -> Response:
    context = context_of(request)
    try:
        asked = body.as_chat()
    except ValidationError as error:
        raise invalid(error) from None
    kv = await checked_kv(context, asked)
    context.log_prompt([message.plain() for message in asked.messages])
    chat = await conversation(context, asked, context.gateway.engines[kv].max_model_len)
    name = context.request_id(request)
    writer = ResponseWriter(name, body, context.gateway.tokens, chat.reading)
    return await respond(request, context, kv, asked, Work.of_chat(chat), writer, named=True)
