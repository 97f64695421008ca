"""What is measured of an engine: many requests at once, and batches of equally long sequences.

Times are wall clock around whole steps, scheduler and sampler included: a step ends when the host
has its tokens, or with asynchronous scheduling those of the step before.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from gossamer.engine import LLM, SamplingParams
from gossamer.workloads.requests import Request, RequestMix

WARM_UP_CONTEXT = 512  # tokens
WARM_UP_OUTPUT = 4


def equal_requests(vocab: int, count: int, context: int, output: int) -> list[Request]:
    """All of the same lengths."""
    mix = RequestMix(requests=count, inputs=(context, context), outputs=(output, output))
    return mix.draw(vocab, seed=count)


@dataclass
class Measured:
    """What happened in a run. first: seconds until each request's first token.

    steps: (seconds, tokens) of the steps that computed no prompts. kv_bytes: the most that pages in
    use took; kv_bytes_dense: what a plain cache would have taken at that time. tokens: what each
    request got as an answer. cached_tokens: of the prompts, what the prefix cache had.
    """

    requests: int
    prompt_tokens: int
    seconds: float = 0.0
    cached_tokens: int = 0
    output_tokens: int = 0
    engine_steps: int = 0
    preemptions: int = 0
    kv_bytes: int = 0
    kv_bytes_dense: int = 0
    first: list[float] = field(default_factory=list)
    steps: list[tuple[float, int]] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)

    def full_steps(self) -> list[float]:
        """Seconds of decode steps with all sequences in them, without the first few."""
        full = [seconds for seconds, tokens in self.steps if tokens == self.requests]
        return full[min(WARM_UP_OUTPUT, len(full) // 2) :]

    @property
    def decode_rate(self) -> float:
        """Tokens per second in full decode steps, without the first few."""
        full = self.full_steps()
        return self.requests * len(full) / sum(full) if full else 0.0


def measure(llm: LLM, requests: Sequence[Request], temperature: float = 0.0) -> Measured:
    """Add all requests, then run until the last one is done."""
    engine, ids = llm.engine, []
    for request in requests:
        params = SamplingParams(temperature=temperature, max_tokens=request.output, ignore_eos=True)
        ids.append(engine.add_request(request.ids, params))
    found = Measured(len(requests), sum(len(r.ids) for r in requests))
    steps, preemptions = engine.stats.steps, engine.stats.preemptions
    outputs, waiting = [engine.requests[i].output for i in ids], set(ids)
    start = time.perf_counter()
    while engine.busy:
        before, prompts = time.perf_counter(), engine.stats.prompt_tokens
        deltas = engine.step()
        now = time.perf_counter()
        tokens = sum(len(delta.token_ids) for delta in deltas)
        found.output_tokens += tokens
        if engine.stats.prompt_tokens == prompts:
            found.steps.append((now - before, tokens))
        new = {delta.request_id for delta in deltas} & waiting
        found.first += [now - start] * len(new)
        waiting -= new
        if engine.kv_bytes > found.kv_bytes:
            found.kv_bytes, found.kv_bytes_dense = engine.kv_bytes, engine.kv_bytes_dense
    found.seconds = time.perf_counter() - start
    found.engine_steps = engine.stats.steps - steps
    found.preemptions = engine.stats.preemptions - preemptions
    found.cached_tokens = sum(output.cached_tokens for output in outputs)
    found.tokens = [output.outputs[0].token_ids for output in outputs]
    return found


def warm_up_requests(llm: LLM, requests: Sequence[Request]) -> None:
    """Two shorter requests: libraries are loaded and threads started.

    What else first steps would wait for on a GPU, the engine does at its start.
    """
    measure(llm, [Request(r.ids[:WARM_UP_CONTEXT], 2) for r in requests[:2]])
