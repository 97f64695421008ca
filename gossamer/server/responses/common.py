"""What chat and text completions have in common: outputs so far, usage, the envelope."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gossamer._version import __version__
from gossamer.engine import TokenLogprobs
from gossamer.engine.outputs import FinishReason
from gossamer.server.info import EngineInfo
from gossamer.server.output_text import Piece

LOWEST_LOGPROB = -9999.0  # JSON has no -inf; this is OpenAI's number for it


@dataclass
class Output:
    """One of the outputs so far."""

    text: str = ""
    tokens: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    prompt: tuple[TokenLogprobs, ...] = ()

    @property
    def likelihood(self) -> float:
        """Mean log probability of a token."""
        values = [entry.logprob for entry in self.logprobs]
        return sum(values) / max(1, len(values))


class ResponseState:
    """Outputs of all prompts, counted through: n of the first prompt, n of the second, ..."""

    def __init__(
        self, engine: EngineInfo, kv: str, prompts: Sequence[Sequence[int]], n: int
    ) -> None:
        self._engine, self._kv, self._n = engine, kv, n
        self._tokens_left_out = 0
        self._lengths = [len(ids) for ids in prompts]
        self._cached = [0] * len(prompts)
        self._first: float | None = None  # when the first token came
        self.outputs = [Output() for _ in range(len(prompts) * n)]

    def add(self, number: int, piece: Piece) -> None:
        if self._first is None and piece.tokens:
            self._first = time.perf_counter()
        output = self.outputs[number]
        output.text += piece.text
        output.tokens += piece.tokens
        output.logprobs += piece.logprobs
        output.finish_reason = piece.finish_reason
        output.prompt = output.prompt or piece.prompt
        self._cached[number // self._n] = piece.cached_tokens

    def keep_best(self, n: int) -> None:
        """Of each prompt the n likeliest outputs, likeliest first; the others still count."""
        groups = [self.outputs[i : i + self._n] for i in range(0, len(self.outputs), self._n)]
        kept = [sorted(group, key=lambda o: -o.likelihood)[:n] for group in groups]
        every = sum(output.tokens for output in self.outputs)
        self.outputs, self._n = [output for group in kept for output in group], n
        self._tokens_left_out = every - sum(output.tokens for output in self.outputs)

    def usage(self) -> dict[str, Any]:
        """The fields `usage` and `gossamer` of a response."""
        prompt = sum(self._lengths)
        completion = sum(output.tokens for output in self.outputs) + self._tokens_left_out
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached)},
        }
        return {"usage": usage, "gossamer": self._cache()}

    def logged(self, start: float) -> dict[str, Any]:
        """For the log, of a request that came at `start` of perf_counter."""
        first = None if self._first is None else round(self._first - start, 6)
        return {
            "prompt_tokens": sum(self._lengths),
            "cached_tokens": sum(self._cached),
            "output_tokens": sum(output.tokens for output in self.outputs),
            "first_token_seconds": first,
        }

    def _cache(self) -> dict[str, Any]:
        """Bytes of K and V at the end of the outputs, none shared: here and in a plain cache."""
        lengths = [
            self._lengths[number // self._n] + output.tokens
            for number, output in enumerate(self.outputs)
        ]
        sizes = [self._engine.bytes_for(length) for length in lengths]
        mine, plain = (sum(size[side] for size in sizes) for side in (0, 1))
        return {
            "kv": self._kv,
            "kv_bytes": mine,
            "kv_bytes_dense": plain,
            "kv_bytes_per_token": mine / sum(lengths),
            "kv_bytes_per_token_dense": plain / sum(lengths),
        }


class Writer(Protocol):
    """Makes the objects of one response."""

    def opening(self, number: int) -> Sequence[dict[str, Any]]:
        """The chunk before the first of an output."""
        ...

    def chunk(self, number: int, piece: Piece) -> Sequence[dict[str, Any]]:
        """What a piece adds; None for nothing that can be shown."""
        ...

    def usage(self, state: ResponseState) -> dict[str, Any]:
        """The last chunk, if it was asked for."""
        ...

    def whole(self, state: ResponseState) -> dict[str, Any]:
        """The response that is not streamed."""
        ...


class Envelope:
    """The fields that are the same in all objects of a response."""

    def __init__(self, prefix: str, name: str, model: str) -> None:
        self._id = f"{prefix}-{name}"
        self._model, self._created = model, int(time.time())

    def __call__(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "system_fingerprint": f"gossamer-{__version__}",
            "choices": choices,
            **more,
        }
