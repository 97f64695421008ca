"""A timed generation: text as it comes, then tokens per second and bytes of the KV cache."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gossamer.engine import LLM, Delta, RequestOutput, SamplingParams
from gossamer.engine.prompts import Prompt


@dataclass
class Generation:
    """Prompts that ran together. Prefill lasts until each of them has its first token.

    kv_bytes: peak of the pages in use; kv_bytes_dense: what a plain cache would have taken at that
    time. decoded: tokens that came after prefill.
    """

    outputs: list[RequestOutput] = field(default_factory=list)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    decoded: int = 0
    kv_bytes: int = 0
    kv_bytes_dense: int = 0
    stopped: bool = False

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were not in the prefix cache."""
        return sum(len(o.prompt_token_ids) - o.cached_tokens for o in self.outputs)

    @property
    def cached_tokens(self) -> int:
        return sum(o.cached_tokens for o in self.outputs)

    @property
    def prefill_rate(self) -> float:
        """Tokens per second; 0 for none."""
        return self.computed_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens per second; 0 for none."""
        return self.decoded / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def saved(self) -> float:
        """Share of a plain cache's bytes that this cache saves; below 0 if it needs more."""
        return 1 - self.kv_bytes / self.kv_bytes_dense if self.kv_bytes_dense else 0.0

    @property
    def error(self) -> str | None:
        """The first error of an output."""
        return next((o.error for r in self.outputs for o in r.outputs if o.error), None)

    def summary(self) -> str:
        """One line: speeds and memory."""
        facts = [f"prefill {self.prefill_rate:,.1f} tok/s", f"decode {self.decode_rate:,.1f} tok/s"]
        if self.kv_bytes:
            facts.append(f"KV {self.kv_bytes / 1e6:,.2f} MB")
        if self.saved > 0:
            facts.append(f"{self.saved:.0%} saved")
        if self.cached_tokens:
            facts.append(f"{self.cached_tokens} tokens cached")
        return ", ".join(facts)

    def take_memory(self, llm: LLM) -> None:
        if llm.engine.kv_bytes > self.kv_bytes:
            self.kv_bytes, self.kv_bytes_dense = llm.engine.kv_bytes, llm.engine.kv_bytes_dense


def timed_generation(
    llm: LLM,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    on_delta: Callable[[Delta], None] = lambda delta: None,
    stop: Callable[[], bool] = lambda: False,
    lora: str | None = None,
) -> Generation:
    """Run the prompts to their ends, or until `stop()`, which is asked after each step.

    lora: the name of an adapter.
    """
    found, stream = Generation(), llm.stream(prompts, params, lora=lora)
    found.outputs = [request.output for request in llm.engine.requests.values()]
    waiting = {output.request_id for output in found.outputs}
    step, prefilling, start = -1, True, time.perf_counter()
    try:
        # stream() would hide steps that only compute parts of prompts; they count, too.
        while not (found.stopped or llm.step()):
            found.take_memory(llm)
            found.stopped = stop()
        while not found.stopped:
            before = time.perf_counter()
            if (delta := next(stream, None)) is None:
                break
            if llm.engine.stats.steps != step:  # the first delta of a step
                step, prefilling, now = llm.engine.stats.steps, bool(waiting), time.perf_counter()
                found.take_memory(llm)
                if prefilling:
                    found.prefill_seconds = now - start
                else:
                    found.decode_seconds += now - before
            waiting.discard(delta.request_id)
            found.decoded += 0 if prefilling else len(delta.token_ids)
            on_delta(delta)
            found.stopped = stop()
    finally:
        for output in found.outputs:
            llm.abort(output.request_id)
    return found
