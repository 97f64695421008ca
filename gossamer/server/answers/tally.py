"""What an HTTP request got so far: texts, log probabilities, tokens, bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gossamer.engine import Engine, TokenLogprobs
from gossamer.engine.outputs import FinishReason
from gossamer.server.events import Event
from gossamer.server.snapshot import bytes_for


@dataclass
class Output:
    """One of the outputs. `shown`: characters of text before the latest event."""

    text: str = ""
    shown: int = 0
    tokens: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None


class Tally:
    """Outputs of all prompts, counted through: n of the first prompt, n of the second, ..."""

    def __init__(self, engine: Engine, kv: str, prompts: Sequence[Sequence[int]], n: int) -> None:
        self._engine, self._kv, self._n = engine, kv, n
        self._lengths = [len(ids) for ids in prompts]
        self._cached = 0
        self.outputs = [Output() for _ in range(len(prompts) * n)]

    def add(self, number: int, event: Event) -> Output:
        output = self.outputs[number]
        output.shown = len(output.text)
        output.text += event.text
        output.tokens += event.tokens
        output.logprobs += event.logprobs
        output.finish_reason = event.finish_reason
        if event.usage is not None:
            self._cached += event.usage.cached_tokens
        return output

    def usage(self) -> dict[str, Any]:
        prompt, completion = sum(self._lengths), sum(output.tokens for output in self.outputs)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self._cached},
        }

    def cache(self) -> dict[str, Any]:
        """Bytes of K and V at the end of the outputs, none shared: here and in a plain cache."""
        lengths = [
            self._lengths[number // self._n] + output.tokens
            for number, output in enumerate(self.outputs)
        ]
        sizes = [bytes_for(self._engine, length) for length in lengths]
        mine, plain = (sum(size[side] for size in sizes) for side in (0, 1))
        return {
            "kv": self._kv,
            "kv_bytes": mine,
            "kv_bytes_dense": plain,
            "kv_bytes_per_token": mine / sum(lengths),
            "kv_bytes_per_token_dense": plain / sum(lengths),
        }
