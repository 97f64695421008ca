"""/v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM calls them."""

from contextlib import suppress
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse

from gossamer.server.context import Context, context_of
from gossamer.server.errors import APIError
from gossamer.server.schemas.adapters import LoadBody, UnloadBody

router = APIRouter(prefix="/v1")
SECONDS = 120.0  # to read an adapter, and for the step that runs meanwhile


@router.post("/load_lora_adapter")
async def load(body: LoadBody, request: Request) -> PlainTextResponse:
    context = context_of(request)
    folder = _folder(context, request, body.lora_path)
    if body.lora_name == context.settings.model:
        raise APIError(400, f"lora_name is {body.lora_name!r}, the model's own", param="lora_name")
    await context.gateway.call("load_adapter", body.lora_name, folder, seconds=SECONDS)
    return PlainTextResponse(f"Success: the adapter {body.lora_name!r} is loaded.")


@router.post("/unload_lora_adapter")
async def unload(body: UnloadBody, request: Request) -> PlainTextResponse:
    context = context_of(request)
    _check_allowed(context, request)
    await context.gateway.call("unload_adapter", body.lora_name, seconds=SECONDS)
    return PlainTextResponse(f"Success: the adapter {body.lora_name!r} is removed.")


def _folder(context: Context, request: Request, path: str) -> Path:
    """Inside the folder that is open for this, whatever `..` and links say."""
    home = _check_allowed(context, request).resolve()
    with suppress(OSError, ValueError, RuntimeError):  # too long, a NUL, a loop of links
        folder = (home / path).resolve()
        if home in folder.parents and folder.is_dir():
            return folder
    raise APIError(
        400, f"lora_path is {path!r}; must be a folder in that of --lora-dir", param="lora_path"
    )


def _check_allowed(context: Context, request: Request) -> Path:
    context.check_admin(request)
    if context.settings.lora_dir is None:
        raise APIError(404, "adapters stay as they are; start the server with --lora-dir DIR")
    return context.settings.lora_dir
