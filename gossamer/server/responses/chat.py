"""chat.completion and chat.completion.chunk objects."""

from collections.abc import Iterable, Sequence
from typing import Any

from gossamer.engine import TokenLogprobs
from gossamer.server.message_stream import MessageStream, Part, Reading
from gossamer.server.output_text import Piece
from gossamer.server.responses.common import LOWEST_LOGPROB, Envelope, Output, ResponseState
from gossamer.server.tokens import Tokens


class ChatWriter:
    """See Writer. reading: how texts are told from reasoning and tool calls."""

    def __init__(
        self, name: str, model: str, tokens: Tokens, reading: Reading, *, logprobs: bool
    ) -> None:
        self._wrap = Envelope("chatcmpl", name, model)
        self._tokens, self._reading, self._logprobs = tokens, reading, logprobs
        self._streams: dict[int, MessageStream] = {}  # of outputs

    def opening(self, number: int) -> list[dict[str, Any]]:
        self._streams[number] = MessageStream(self._reading)
        return [self._chunk(number, {"role": "assistant", "content": ""}, None, None)]

    def chunk(self, number: int, piece: Piece) -> list[dict[str, Any]]:
        stream = self._streams[number]
        parts = stream.feed(piece.text, last=piece.finish_reason is not None)
        told = self._logprobs and piece.logprobs
        if not (parts or piece.finish_reason or told):
            return []
        delta = self._delta(parts)
        if told and not delta:
            delta = {"content": ""}
        logprobs = self._logprobs_json(piece.logprobs) if told else None
        reason = _reason(piece.finish_reason, stream.calls)
        return [self._chunk(number, delta, logprobs, reason)]

    def usage(self, state: ResponseState) -> dict[str, Any]:
        return self._wrap("chat.completion.chunk", [], **state.usage())

    def whole(self, state: ResponseState) -> dict[str, Any]:
        choices = [self._choice(number, output) for number, output in enumerate(state.outputs)]
        return self._wrap("chat.completion", choices, **state.usage())

    def _choice(self, number: int, output: Output) -> dict[str, Any]:
        stream = MessageStream(self._reading)
        parts = stream.feed(output.text, last=True)
        said = {kind: "".join(p.text for p in parts if p.kind == kind) for kind in SAID}
        message: dict[str, Any] = {"role": "assistant", "content": said["content"], "refusal": None}
        if said["reasoning"]:
            message["reasoning_content"] = said["reasoning"]
        if stream.calls:
            message["content"] = said["content"] or None
            message["tool_calls"] = self._whole_calls(parts)
        return {
            "index": number,
            "message": message,
            "logprobs": self._logprobs_json(output.logprobs) if self._logprobs else None,
            "finish_reason": _reason(output.finish_reason, stream.calls),
        }

    def _whole_calls(self, parts: Sequence[Part]) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []
        for part in parts:
            if part.kind == "call":
                calls.append(self._call(part.text))
            elif part.kind == "arguments":
                calls[part.call]["function"]["arguments"] += part.text
        return calls

    def _call(self, name: str) -> dict[str, Any]:
        assert self._reading.tools is not None, "calls are read by a format"
        function = {"name": name, "arguments": ""}
        return {"id": self._reading.tools.new_id(), "type": "function", "function": function}

    def _delta(self, parts: Sequence[Part]) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        calls: dict[int, dict[str, Any]] = {}
        for part in parts:
            if part.kind in SAID:
                name = SAID[part.kind]
                delta[name] = delta.get(name, "") + part.text
            elif part.kind == "call":
                calls[part.call] = {"index": part.call, **self._call(part.text)}
            else:
                blank = {"index": part.call, "function": {"arguments": ""}}
                calls.setdefault(part.call, blank)["function"]["arguments"] += part.text
        return {**delta, "tool_calls": list(calls.values())} if calls else delta

    def _chunk(
        self, number: int, delta: dict[str, Any], logprobs: Any, reason: str | None
    ) -> dict[str, Any]:
        choice = {"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._wrap("chat.completion.chunk", [choice])

    def _logprobs_json(self, logprobs: Iterable[TokenLogprobs]) -> dict[str, Any]:
        content = [
            self._token_json(entry.token_id, entry.logprob)
            | {"top_logprobs": [self._token_json(token, value) for token, value in entry.top]}
            for entry in logprobs
        ]
        return {"content": content, "refusal": None}

    def _token_json(self, token: int, logprob: float) -> dict[str, Any]:
        text, data = self._tokens.piece(token)
        return {"token": text, "bytes": data, "logprob": max(logprob, LOWEST_LOGPROB)}


SAID = {"content": "content", "reasoning": "reasoning_content"}  # parts, and their fields


def _reason(reason: str | None, calls: int) -> str | None:
    return "tool_calls" if reason == "stop" and calls else reason
