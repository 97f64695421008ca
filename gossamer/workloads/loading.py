"""Engines that are loaded, warmed up and closed one after another."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from gossamer.engine import LLM, SamplingParams
from gossamer.engine.prompts import Prompt, encode
from gossamer.models import Source, open_model

WARM_UP_PROMPT, WARM_UP_OUTPUT = 256, 4  # tokens


@contextmanager
def loaded(model: str, **options: Any) -> Iterator[LLM]:
    """An engine, closed at the end; what `kv="auto"` came to is a line on stderr."""
    free_memory()
    several = options.get("tensor_parallel_size", 1) > 1
    weights = (options.get("random_weights", False), options.get("seed", 0))
    with LLM(model if several else opened(model, *weights), **options) as llm:
        if llm.chosen is not None:
            print(llm.chosen, file=sys.stderr)
        yield llm


def free_memory() -> None:
    """What is left of an earlier engine, before the next one is loaded."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@cache
def opened(model: str, random_weights: bool, seed: int) -> Source:
    """Opened once in a process: tokenizers of GGUF files take seconds."""
    return open_model(model, random_weights, seed)


def warm_up(llm: LLM, prompt: Prompt) -> None:
    """What only first calls pay for: threads, lazy libraries, CUDA graphs of one sequence."""
    vocab = llm.engine.built.source.config.vocab_size
    room = max(1, llm.engine.built.max_model_len - WARM_UP_OUTPUT)
    ids = encode(prompt, llm.tokenizer).ids[: min(room, WARM_UP_PROMPT)]
    other = [(token + 1) % vocab for token in ids]  # the prefix cache must not know the prompt
    params = SamplingParams(temperature=0, max_tokens=WARM_UP_OUTPUT, ignore_eos=True)
    llm.generate([other], params)


def has_chat_template(llm: LLM) -> bool:
    return bool(getattr(llm.tokenizer, "chat_template", None))
