"""What routes need to know of their server."""

import json
import logging
import secrets
from dataclasses import dataclass
from typing import Any, cast

from fastapi import Request

from gossamer.server.errors import APIError
from gossamer.server.gateway import Gateway
from gossamer.server.settings import Settings

log = logging.getLogger("gossamer.server")


@dataclass(frozen=True, eq=False)
class Context:
    gateway: Gateway
    settings: Settings

    def check_model(self, name: str | None) -> None:
        """A name is compared, and nothing else is done with it."""
        if name is not None and name != self.settings.model:
            raise APIError(
                404,
                f"model is {name!r}; must be {self.settings.model!r}",
                param="model",
                code="model_not_found",
            )

    @staticmethod
    def request_id(request: Request) -> str:
        """The same as in the log."""
        return str(getattr(request.state, "request_id", None) or secrets.token_hex(12))

    def log_prompt(self, prompt: Any) -> None:
        if self.settings.log_prompts:
            log.info("prompt: %s", json.dumps(prompt))


def context_of(request: Request) -> Context:
    return cast(Context, request.app.state.context)
