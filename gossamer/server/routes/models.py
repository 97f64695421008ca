"""/v1/models, /tokenize and /detokenize."""

from typing import Any

from fastapi import APIRouter, Request

from gossamer.server.context import Context, context_of
from gossamer.server.errors import APIError
from gossamer.server.schemas.tokens import DetokenizeBody, TokenizeBody

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    context = context_of(request)
    adapters = await context.gateway.adapters()
    return {"object": "list", "data": [_model(context), *(_adapter(context, a) for a in adapters)]}


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> dict[str, Any]:
    context = context_of(request)
    await context.check_model(name)
    return _model(context) if context.lora_of(name) is None else _adapter(context, name)


def _model(context: Context) -> dict[str, Any]:
    gateway = context.gateway
    return {
        "id": context.settings.model,
        "object": "model",
        "created": int(gateway.info.started),
        "owned_by": "gossamer",
        "max_model_len": min(e.max_model_len for e in gateway.engines.values()),
        "kv": list(gateway.engines),
    }


def _adapter(context: Context, name: str) -> dict[str, Any]:
    return {**_model(context), "id": name, "parent": context.settings.model}


@router.post("/tokenize")
async def tokenize(body: TokenizeBody, request: Request) -> dict[str, Any]:
    context = context_of(request)
    if body.model is not None:
        await context.check_model(body.model)
    tokens = context.gateway.tokens
    longest = context.settings.limits.body  # text of any length that gets here
    if body.messages is not None:
        found = list(await tokens.encode([m.plain() for m in body.messages], longest))
    else:
        text = body.prompt or ""
        found = await tokens.plain(text, special=body.add_special_tokens)
    return {
        "tokens": found,
        "count": len(found),
        "max_model_len": _model(context)["max_model_len"],
    }


@router.post("/detokenize")
async def detokenize(body: DetokenizeBody, request: Request) -> dict[str, Any]:
    context = context_of(request)
    if body.model is not None:
        await context.check_model(body.model)
    vocab = next(iter(context.gateway.engines.values())).vocab_size
    for token in body.tokens:
        if token >= vocab:
            raise APIError(400, f"tokens has {token}; must be 0 to {vocab - 1}", param="tokens")
    return {"prompt": await context.gateway.tokens.decode(body.tokens)}
