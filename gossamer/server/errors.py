"""Errors as OpenAI's clients expect them: {"error": {message, type, param, code}}."""

import re
from collections.abc import Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from gossamer.server.events import Failure

SHOWN = 80  # characters of a bad value
BRANCH = re.compile(r"[\[\]-]|^(str|int|float|bool|NamedTool)$")
OTHER_TYPES = ("string_type", "list_type", "model_type", "int_type")
TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class APIError(Exception):
    """Ends a request with this status; `param` names the field that is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, headers

    def body(self) -> dict[str, Any]:
        server = self.status >= 500
        kind = TYPES.get(self.status, "server_error" if server else "invalid_request_error")
        # Names of fields come from outside and may hold what UTF-8 cannot.
        message = str(self).encode("utf-8", "replace").decode()
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    def event(self) -> dict[str, Any]:
        """In a stream of events with types."""
        said = self.body()["error"]
        return {"type": "error", **{name: said[name] for name in ("message", "param", "code")}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)


def failed(failure: Failure) -> APIError:
    """What the client may know of it: the reason, or an id if the engine is to blame."""
    if failure.status != 500:
        wait = failure.retry_after
        headers = None if wait is None else {"Retry-After": str(wait)}
        return APIError(failure.status, failure.message, code=failure.code, headers=headers)
    return APIError(
        500,
        f"the engine failed; the server's log has the reason under {failure.id}",
        code=failure.id,
    )


def invalid(error: RequestValidationError | ValidationError) -> APIError:
    """Of a body that is not what the schema says: the first mistake, the value, what is valid."""
    first = _most_specific(error.errors())
    kind, message, param = first["type"], first["msg"], _path(first)
    if kind == "json_invalid":
        reason = str(first.get("ctx", {}).get("error", ""))[:SHOWN]
        return APIError(400, f"the body is not JSON: {reason}", code="invalid_json")
    if kind == "extra_forbidden":
        return APIError(400, f"{param}: no such field", param=param, code="unknown_field")
    if kind == "missing":
        return APIError(400, f"{param or 'the body'} is missing", param=param, code="missing_field")
    if kind == "value_error":  # of our own checks, which name the value
        message = message.removeprefix("Value error, ")
        return APIError(400, message, param=param, code="invalid_value")
    shown = _shown(first.get("input"))
    return APIError(400, f"{param or 'the body'} is {shown}: {message}", param=param, code=kind)


def _most_specific(errors: Sequence[Any]) -> Any:
    """Of a field with several types, the mistake in the type that was meant."""
    return next((e for e in errors if not _is_another_type(e)), errors[0])


def _is_another_type(error: Any) -> bool:
    one_of = error["type"] == "literal_error" and str(error["loc"][-1]).startswith("literal[")
    return one_of or error["type"] in OTHER_TYPES


def _path(error: Any) -> str | None:
    """messages.0.role; pydantic's names of alternatives left out."""
    *outer, last = [str(part) for part in error["loc"]] or ["body"]
    known = [part for part in outer if part != "body" and BRANCH.search(part) is None]
    if last != "body" and (error["type"] == "extra_forbidden" or BRANCH.search(last) is None):
        known.append(last)
    return ".".join(known).encode("utf-8", "replace").decode()[:SHOWN] or None


def _shown(value: Any) -> str:
    """A little of it, whatever its size."""
    if isinstance(value, str | bytes | list):
        value = value[:SHOWN]
    elif isinstance(value, dict):
        return f"an object with {len(value)} fields"
    elif isinstance(value, int) and abs(value) >= 10**SHOWN:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."
