"""Text of an output's tokens, and its end by a stop string: the API's part of generation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gossamer.engine import SamplingParams, TokenLogprobs
from gossamer.engine.detokenizer import Detokenizer, Tokenizer
from gossamer.engine.outputs import FinishReason
from gossamer.server.events import Event


@dataclass(frozen=True)
class Piece:
    """What is new of an output, as its client sees it."""

    text: str
    tokens: int
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None
    cached_tokens: int
    prompt: tuple[TokenLogprobs, ...] = ()


class OutputText:
    """Turns the events of one output into pieces. tokenizer: None for a model without text.

    shown: see Detokenizer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        shown: Mapping[int, str] | None = None,
    ) -> None:
        if params.stop and tokenizer is None:
            raise ValueError(f"stop is {params.stop}; must be empty for a model without tokenizer")
        self._decoder = (
            None if tokenizer is None else Detokenizer(tokenizer, params, prompt_ids, shown)
        )
        self.finished = False

    def take(self, event: Event) -> Piece:
        """Its text, up to a stop string that ends in it."""
        count, reason = len(event.token_ids), event.finish_reason
        # "stop" is a token that ends the output, and is not shown.
        shown = event.token_ids[:-1] if reason == "stop" else event.token_ids
        text = ""
        if self._decoder is not None:
            for i, token in enumerate(shown):
                text += self._decoder.append(token)
                if self._decoder.stopped is not None:
                    count, reason = i + 1, "stop"
                    break
            if reason is not None:
                text += self._decoder.finish()
                if self._decoder.stopped is not None:
                    reason = "stop"  # it was held back till now
        self.finished = reason is not None
        return Piece(text, count, event.logprobs[:count], reason, event.cached_tokens, event.prompt)
