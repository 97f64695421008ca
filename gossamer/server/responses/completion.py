"""text_completion objects."""

from collections.abc import Iterable, Sequence
from typing import Any

from gossamer.engine import TokenLogprobs
from gossamer.server.output_text import Piece
from gossamer.server.responses.common import LOWEST_LOGPROB, Envelope, ResponseState
from gossamer.server.tokens import Tokens


class CompletionWriter:
    """See Writer. echoes: prompts that outputs begin with, as token ids and text; n outputs each,
    and none for outputs of their own alone."""

    def __init__(
        self,
        name: str,
        model: str,
        tokens: Tokens,
        *,
        logprobs: bool,
        echoes: Sequence[tuple[Sequence[int], str]] = (),
        n: int = 1,
    ) -> None:
        self._wrap = Envelope("cmpl", name, model)
        self._tokens, self._logprobs, self._echoes, self._n = tokens, logprobs, echoes, n
        self._offsets: dict[int, int] = {}  # of outputs: where the next token's text starts

    def opening(self, number: int) -> list[dict[str, Any]]:
        """The prompt; with its log probabilities it comes when those are known."""
        if not self._echoes or self._logprobs:
            return []
        return [self._wrap("text_completion", [_choice(number, self._echo(number), None, None)])]

    def chunk(self, number: int, piece: Piece) -> list[dict[str, Any]]:
        if not (piece.text or piece.finish_reason or (self._logprobs and piece.logprobs)):
            return []
        logprobs, text = None, piece.text
        if self._logprobs:
            echoed = bool(self._echoes) and number not in self._offsets
            text = self._echo(number) + text if echoed else text
            logprobs = self._logprobs_json(number, piece.logprobs, piece.prompt)
        choice = _choice(number, text, logprobs, piece.finish_reason)
        return [self._wrap("text_completion", [choice])]

    def usage(self, state: ResponseState) -> dict[str, Any]:
        return self._wrap("text_completion", [], **state.usage())

    def whole(self, state: ResponseState) -> dict[str, Any]:
        choices = [
            _choice(
                number,
                self._echo(number) + output.text,
                self._logprobs_json(number, output.logprobs, output.prompt)
                if self._logprobs
                else None,
                output.finish_reason,
            )
            for number, output in enumerate(state.outputs)
        ]
        return self._wrap("text_completion", choices, **state.usage())

    def _echo(self, number: int) -> str:
        return self._echoes[number // self._n][1] if self._echoes else ""

    def _logprobs_json(
        self, number: int, logprobs: Iterable[TokenLogprobs], prompt: Sequence[TokenLogprobs]
    ) -> dict[str, Any]:
        """prompt: of its tokens but the first, before which there is nothing."""
        entries = [*prompt, *logprobs]
        ids = [entry.token_id for entry in entries]
        values: list[Any] = [max(entry.logprob, LOWEST_LOGPROB) for entry in entries]
        tops: list[Any] = [
            {self._text(token): max(value, LOWEST_LOGPROB) for token, value in entry.top}
            for entry in entries
        ]
        if self._echoes and number not in self._offsets:
            ids.insert(0, self._echoes[number // self._n][0][0])
            values.insert(0, None)
            tops.insert(0, None)
        offsets, tokens = [], [self._text(token) for token in ids]
        for token in tokens:
            offsets.append(self._offsets.get(number, 0))
            self._offsets[number] = offsets[-1] + len(token)
        return {
            "tokens": tokens,
            "token_logprobs": values,
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        return self._tokens.piece(token)[0]


def _choice(number: int, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
    return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": reason}
