"""text_completion objects."""

from collections.abc import Iterable
from typing import Any

from gossamer.engine import TokenLogprobs
from gossamer.server.output_text import Piece
from gossamer.server.responses.common import LOWEST_LOGPROB, Envelope, ResponseState
from gossamer.server.tokens import Tokens


class CompletionWriter:
    """See Writer."""

    def __init__(self, name: str, model: str, tokens: Tokens, *, logprobs: bool) -> None:
        self._wrap = Envelope("cmpl", name, model)
        self._tokens, self._logprobs = tokens, logprobs
        self._offsets: dict[int, int] = {}  # of outputs: where the next token's text starts

    def opening(self, number: int) -> dict[str, Any] | None:
        return None

    def chunk(self, number: int, piece: Piece) -> dict[str, Any] | None:
        if not (piece.text or piece.finish_reason or (self._logprobs and piece.logprobs)):
            return None
        logprobs = self._logprobs_json(number, piece.logprobs) if self._logprobs else None
        return self._wrap(
            "text_completion", [_choice(number, piece.text, logprobs, piece.finish_reason)]
        )

    def usage(self, state: ResponseState) -> dict[str, Any]:
        return self._wrap("text_completion", [], **state.usage())

    def whole(self, state: ResponseState) -> dict[str, Any]:
        choices = [
            _choice(
                number,
                output.text,
                self._logprobs_json(number, output.logprobs) if self._logprobs else None,
                output.finish_reason,
            )
            for number, output in enumerate(state.outputs)
        ]
        return self._wrap("text_completion", choices, **state.usage())

    def _logprobs_json(self, number: int, logprobs: Iterable[TokenLogprobs]) -> dict[str, Any]:
        entries, offsets = list(logprobs), []
        for entry in entries:
            offsets.append(self._offsets.get(number, 0))
            self._offsets[number] = offsets[-1] + len(self._text(entry.token_id))
        return {
            "tokens": [self._text(entry.token_id) for entry in entries],
            "token_logprobs": [max(entry.logprob, LOWEST_LOGPROB) for entry in entries],
            "top_logprobs": [
                {self._text(token): max(value, LOWEST_LOGPROB) for token, value in entry.top}
                for entry in entries
            ],
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        return self._tokens.piece(token)[0]


def _choice(number: int, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
    return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": reason}
