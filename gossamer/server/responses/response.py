"""response objects of /v1/responses, and the events of their making."""

import secrets
import time
from collections.abc import Sequence
from typing import Any

from gossamer.engine import TokenLogprobs
from gossamer.server.message_stream import MessageStream, Part, Reading
from gossamer.server.output_text import Piece
from gossamer.server.responses.common import LOWEST_LOGPROB, ResponseState
from gossamer.server.schemas.responses import ResponsesBody
from gossamer.server.tokens import Tokens

Event = dict[str, Any]
# Of the two kinds of items with text: names of their parts, and of events.
TEXTS = {"content": "output_text", "reasoning": "reasoning_text"}


class ResponseWriter:
    """See Writer. Of one output, as items that come one after the other."""

    def __init__(self, name: str, body: ResponsesBody, tokens: Tokens, reading: Reading) -> None:
        self._tokens, self._reading, self._body = tokens, reading, body
        self._stream = MessageStream(reading)
        self._items: list[dict[str, Any]] = []
        self._open: str | None = None  # the kind of the last item, until it is complete
        self._sequence = 0
        self._response = _response(f"resp_{name}", body)

    def opening(self, number: int) -> list[Event]:
        return [
            self._event("response.created", response=dict(self._response)),
            self._event("response.in_progress", response=dict(self._response)),
        ]

    def chunk(self, number: int, piece: Piece) -> list[Event]:
        last = piece.finish_reason is not None
        logprobs = self._logprobs(piece.logprobs)
        events: list[Event] = []
        for part in self._stream.feed(piece.text, last=last):
            events += self._take(part, logprobs if part.kind == "content" else [])
        if last:
            status = "incomplete" if piece.finish_reason == "length" else "completed"
            if not self._items:
                events += self._begin("content")
            events += self._end(status)
            self._response["status"] = status
            if status == "incomplete":
                self._response["incomplete_details"] = {"reason": "max_output_tokens"}
        return events

    def usage(self, state: ResponseState) -> Event:
        """The last event, which has the whole response."""
        whole = self._whole(state)
        return self._event(f"response.{whole['status']}", response=whole)

    def whole(self, state: ResponseState) -> dict[str, Any]:
        [output] = state.outputs
        logprobs = tuple(output.logprobs)
        self.chunk(0, Piece(output.text, output.tokens, logprobs, output.finish_reason, 0))
        return self._whole(state)

    def _whole(self, state: ResponseState) -> dict[str, Any]:
        said = state.usage()
        usage = said["usage"]
        return {
            **self._response,
            "output": self._items,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": usage["prompt_tokens_details"],
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens()},
                "total_tokens": usage["total_tokens"],
            },
            "gossamer": said["gossamer"],
        }

    def _reasoning_tokens(self) -> int:
        """As many as its text has; the model may have cut it otherwise."""
        items = [item for item in self._items if item["type"] == "reasoning"]
        text = "".join(item["content"][0]["text"] for item in items)
        return len(self._tokens.decoder(text, add_special_tokens=False)["input_ids"]) if text else 0

    # ---- items ------------------------------------------------------------------------------

    def _take(self, part: Part, logprobs: list[Any]) -> list[Event]:
        """What an answer's part adds to the last item, or to a new one."""
        if part.kind == "arguments":
            self._items[-1]["arguments"] += part.text
            return [self._of_item("response.function_call_arguments.delta", delta=part.text)]
        events: list[Event] = []
        if part.kind == "call" or part.kind != self._open:
            events = [*self._end("completed"), *self._begin(part.kind, part.text)]
        if part.kind == "call":
            return events
        content = self._items[-1]["content"][0]
        content["text"] += part.text
        more = {}
        if part.kind == "content":
            content["logprobs"] += logprobs
            more = {"logprobs": logprobs}
        name = f"response.{TEXTS[part.kind]}.delta"
        return [*events, self._of_item(name, content_index=0, delta=part.text, **more)]

    def _begin(self, kind: str, name: str = "") -> list[Event]:
        self._open = kind
        if kind == "call":
            assert self._reading.tools is not None, "calls are read by a format"
            item: dict[str, Any] = {
                "type": "function_call",
                "id": f"fc_{secrets.token_hex(12)}",
                "call_id": self._reading.tools.new_id(),
                "name": name,
                "arguments": "",
            }
        elif kind == "content":
            text = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item = {
                "type": "message",
                "id": f"msg_{secrets.token_hex(12)}",
                "role": "assistant",
                "content": [text],
            }
        else:
            item = {
                "type": "reasoning",
                "id": f"rs_{secrets.token_hex(12)}",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": ""}],
            }
        self._items.append({**item, "status": "in_progress"})
        blank = {**self._items[-1], "content": []} if kind != "call" else dict(self._items[-1])
        events = [self._of_item("response.output_item.added", item=blank)]
        if kind != "call":
            part = dict(self._items[-1]["content"][0])
            events.append(self._of_item("response.content_part.added", content_index=0, part=part))
        return events

    def _end(self, status: str) -> list[Event]:
        """Of the item that is open, if one is."""
        kind, self._open = self._open, None
        if kind is None:
            return []
        item = self._items[-1]
        item["status"] = status
        if kind == "call":
            said = {"name": item["name"], "arguments": item["arguments"]}
            events = [self._of_item("response.function_call_arguments.done", **said)]
        else:
            part = item["content"][0]
            name = f"response.{TEXTS[kind]}.done"
            more = {"logprobs": part["logprobs"]} if kind == "content" else {}
            events = [
                self._of_item(name, content_index=0, text=part["text"], **more),
                self._of_item("response.content_part.done", content_index=0, part=part),
            ]
        return [*events, self._of_item("response.output_item.done", item=item)]

    def _of_item(self, kind: str, **fields: Any) -> Event:
        """An event of the last item."""
        if "item" not in fields:
            fields["item_id"] = self._items[-1]["id"]
        return self._event(kind, output_index=len(self._items) - 1, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        self._sequence += 1
        return {"type": kind, "sequence_number": self._sequence - 1, **fields}

    def _logprobs(self, logprobs: Sequence[TokenLogprobs]) -> list[Any]:
        return [
            self._token(entry.token_id, entry.logprob)
            | {"top_logprobs": [self._token(token, value) for token, value in entry.top]}
            for entry in logprobs
        ]

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text, data = self._tokens.piece(token)
        return {"token": text, "bytes": data, "logprob": max(logprob, LOWEST_LOGPROB)}


def _response(name: str, body: ResponsesBody) -> dict[str, Any]:
    """What is known of it before there is output."""
    asked = body.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {
        "id": name,
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "model": body.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "store": False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": asked.get("text") or {"format": {"type": "text"}},
        "tool_choice": asked.get("tool_choice") or "auto",
        "tools": asked.get("tools") or [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
    }
