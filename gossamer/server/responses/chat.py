"""chat.completion and chat.completion.chunk objects."""

from collections.abc import Iterable
from typing import Any

from gossamer.engine import TokenLogprobs
from gossamer.server.output_text import Piece
from gossamer.server.responses.common import LOWEST_LOGPROB, Envelope, ResponseState
from gossamer.server.tokens import Tokens


class ChatWriter:
    """See Writer."""

    def __init__(self, name: str, model: str, tokens: Tokens, *, logprobs: bool) -> None:
        self._wrap = Envelope("chatcmpl", name, model)
        self._tokens, self._logprobs = tokens, logprobs

    def opening(self, number: int) -> dict[str, Any] | None:
        return self._chunk(number, {"role": "assistant", "content": ""}, None, None)

    def chunk(self, number: int, piece: Piece) -> dict[str, Any] | None:
        if not (piece.text or piece.finish_reason or (self._logprobs and piece.logprobs)):
            return None
        delta = {"content": piece.text} if piece.text or piece.logprobs else {}
        logprobs = (
            self._logprobs_json(piece.logprobs) if self._logprobs and piece.logprobs else None
        )
        return self._chunk(number, delta, logprobs, piece.finish_reason)

    def usage(self, state: ResponseState) -> dict[str, Any]:
        return self._wrap("chat.completion.chunk", [], **state.usage())

    def whole(self, state: ResponseState) -> dict[str, Any]:
        choices = [
            {
                "index": number,
                "message": {"role": "assistant", "content": output.text, "refusal": None},
                "logprobs": self._logprobs_json(output.logprobs) if self._logprobs else None,
                "finish_reason": output.finish_reason,
            }
            for number, output in enumerate(state.outputs)
        ]
        return self._wrap("chat.completion", choices, **state.usage())

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
