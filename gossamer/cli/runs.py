"""A timed run of an engine: text as it comes, then tokens per second and bytes of the KV cache."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from gossamer.engine import LLM, Delta, RequestOutput, SamplingParams
from gossamer.engine.prompts import Prompt, encode
from gossamer.models import Source, open_model

WARM_UP_PROMPT, WARM_UP_OUTPUT = 256, 4  # tokens


@dataclass
class Run:
    """Prompts that ran together. Prefill is the time until each of them has its first token.

    kv_bytes: the most that pages in use took; kv_bytes_dense: what a plain cache would have taken
    at that time. decoded: tokens that came after prefill.
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
        """Share of a plain cache's bytes that this cache does without; below 0 if it needs more."""
        return 1 - self.kv_bytes / self.kv_bytes_dense if self.kv_bytes_dense else 0.0

    @property
    def problem(self) -> str | None:
        """What ended an output that did not end well."""
        return next((o.error for r in self.outputs for o in r.outputs if o.error), None)

    def take_memory(self, llm: LLM) -> None:
        if llm.engine.kv_bytes > self.kv_bytes:
            self.kv_bytes, self.kv_bytes_dense = llm.engine.kv_bytes, llm.engine.kv_bytes_dense


def timed_run(
    llm: LLM,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    on_delta: Callable[[Delta], None] = lambda delta: None,
    stop: Callable[[], bool] = lambda: False,
) -> Run:
    """Run the prompts to their ends, or until `stop()`, which is asked after each step."""
    ids = _add(llm, prompts, params)
    found, run, waiting = dict[str, RequestOutput](), Run(), set(ids)
    running = set(ids)
    start = time.perf_counter()
    try:
        while running and not run.stopped:
            before, prefilling = time.perf_counter(), bool(waiting)
            deltas = llm.step()
            seconds = time.perf_counter() - before
            run.take_memory(llm)
            for delta in deltas:
                found[delta.request_id] = delta.request
                waiting.discard(delta.request_id)
                run.decoded += 0 if prefilling else len(delta.token_ids)
                if delta.request.finished:
                    running.discard(delta.request_id)
                on_delta(delta)
            if prefilling:
                run.prefill_seconds = before + seconds - start
            else:
                run.decode_seconds += seconds
            run.stopped = stop()
    finally:
        for request_id in running:
            found.update((d.request_id, d.request) for d in llm.abort(request_id))
    run.outputs = [found[request_id] for request_id in ids]
    return run


def _add(llm: LLM, prompts: Sequence[Prompt], params: SamplingParams) -> list[str]:
    """All prompts, or none and a ValueError."""
    ids: list[str] = []
    try:
        for prompt in prompts:
            ids.append(llm.add_request(prompt, params))
    except BaseException:
        for request_id in ids:
            llm.abort(request_id)
        raise
    return ids


def warm_up(llm: LLM, prompt: Prompt) -> None:
    """What only first calls pay for: threads, lazy libraries, CUDA graphs of one sequence."""
    vocab = llm.engine.built.source.config.vocab_size
    room = max(1, llm.engine.built.max_model_len - WARM_UP_OUTPUT)
    ids = encode(prompt, llm.tokenizer).ids[: min(room, WARM_UP_PROMPT)]
    other = [(token + 1) % vocab for token in ids]  # the prefix cache must not know the prompt
    params = SamplingParams(temperature=0, max_tokens=WARM_UP_OUTPUT, ignore_eos=True)
    llm.generate([other], params)


@contextmanager
def loaded(model: str, **options: Any) -> Iterator[LLM]:
    """An engine, closed afterwards; first, what is left of an earlier one leaves memory."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    several = options.get("tensor_parallel_size", 1) > 1
    weights = (options.get("random_weights", False), options.get("seed", 0))
    with LLM(model if several else _opened(model, *weights), **options) as llm:
        yield llm


@cache
def _opened(model: str, random_weights: bool, seed: int) -> Source:
    """Opened once for all caches that a command compares."""
    return open_model(model, random_weights, seed)


def has_chat_template(llm: LLM) -> bool:
    """Whether the model is made for chats."""
    return bool(getattr(llm.tokenizer, "chat_template", None))
