"""One line of a batch file as a request: OpenAI's format, and what is wrong with a line."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from gossamer.server.errors import APIError, invalid
from gossamer.server.schemas.base import Body

MAX_ID = 512  # characters


class BatchLine(Body):
    """The body is the server's to judge."""

    custom_id: Annotated[str, Field(min_length=1, max_length=MAX_ID)]
    method: Literal["POST"]
    url: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]
    body: dict[str, Any]


@dataclass(frozen=True)
class Request:
    """body: JSON, for the path `url` of the server."""

    custom_id: str
    url: str
    body: bytes


def custom_id_of(content: bytes) -> str | None:
    """None where it has none that can be used."""
    try:
        return _custom_id(_json(content))
    except APIError:
        return None


def parse(content: bytes) -> tuple[str | None, Request | APIError]:
    """The custom_id, if it can be used, and the request, or what is wrong with it."""
    custom_id = None
    try:
        found = _json(content)
        if not isinstance(found, dict):
            raise APIError(400, f"the line is {type(found).__name__}; must be an object")
        custom_id = _custom_id(found)
        line = BatchLine.model_validate(found)
        if line.body.get("stream") is True:
            raise APIError(400, "stream is True; must be false in a batch", param="body.stream")
        return custom_id, Request(line.custom_id, line.url, _bytes(line.body))
    except ValidationError as error:
        return custom_id, invalid(error)
    except APIError as error:
        return custom_id, error


def _json(content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise APIError(400, f"the line is not JSON: {error}", code="invalid_json") from None


def _bytes(body: dict[str, Any]) -> bytes:
    """As short as it was; halves of characters pass, for the server to find."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def _custom_id(found: Any) -> str | None:
    custom_id = found.get("custom_id") if isinstance(found, dict) else None
    return custom_id if isinstance(custom_id, str) and 0 < len(custom_id) <= MAX_ID else None
