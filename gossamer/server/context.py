"""What routes need to know of their server."""

import json
import logging
import secrets
from dataclasses import dataclass
from typing import Any, cast

from fastapi import Request

from gossamer.server.errors import APIError
from gossamer.server.gateway import Gateway
from gossamer.server.keys import Key
from gossamer.server.settings import Settings

log = logging.getLogger("gossamer.server")


@dataclass(frozen=True, eq=False)
class Context:
    gateway: Gateway
    settings: Settings

    async def check_model(self, name: str) -> None:
        """The model, or an adapter. A name is compared, and nothing else is done with it."""
        if self.lora_of(name) is None or self.gateway.had_adapter(name):
            return
        adapters = await self.gateway.adapters()
        if name not in adapters:
            valid = ", ".join(map(repr, (self.settings.model, *adapters)))
            message = f"model is {name!r}; must be {valid}"
            raise APIError(404, message, param="model", code="model_not_found")

    def lora_of(self, model: str) -> str | None:
        """The adapter that a request's model names; None for the model itself."""
        return None if model == self.settings.model else model

    @staticmethod
    def key_of(request: Request) -> Key | None:
        """None where there are no keys."""
        return cast(Key | None, getattr(request.state, "key", None))

    def check_admin(self, request: Request) -> None:
        """APIError 403 for a key that may not change what the server does."""
        key = self.key_of(request)
        if key is not None and not key.admin:
            message = f"the API key {key.name!r} is not an admin's; must have admin = true"
            raise APIError(403, message, code="not_admin")

    @staticmethod
    def request_id(request: Request) -> str:
        """The same as in the log."""
        return str(getattr(request.state, "request_id", None) or secrets.token_hex(12))

    def log_prompt(self, prompt: Any) -> None:
        if self.settings.log_prompts:
            log.info("prompt: %s", json.dumps(prompt))


def context_of(request: Request) -> Context:
    return cast(Context, request.app.state.context)
