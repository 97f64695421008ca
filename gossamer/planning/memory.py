"""What fits into a GPU: weights, steps, and pages of the KV cache in what they leave."""

from dataclasses import dataclass

import torch

from gossamer.engine.cache_size import CacheSize, cache_size
from gossamer.engine.memory import GPU_SHARE, GRAPHS, SAMPLING
from gossamer.kv.cache_spec import CacheSpec
from gossamer.planning.step import StepModel

CONTEXT = 1 << 30  # of CUDA and its libraries, in a process


@dataclass(frozen=True)
class Limits:
    """Those of an engine, by its options' names and defaults. kv_memory: bytes of all ranks; None
    for what weights and steps leave. Raises ValueError."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    kv_memory: int | None = None
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        for name, least in (("max_num_seqs", 1), ("max_num_batched_tokens", 32)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} is {value!r}; must be an integer of at least {least}")


def step_bytes(model: StepModel, limits: Limits) -> int:
    """What a step takes beside weights and cache, as the engine counts it (engine/memory.py): there
    it is measured, here it is the largest tensors that live at a time."""
    m, size = model.model, model.dtype.itemsize
    wide = 3 * m.intermediate_size // model.ranks + 4 * m.hidden_size
    logits = 4 * limits.max_num_seqs * m.vocab_size
    taken = limits.max_num_batched_tokens * wide * size + logits
    return 2 * taken + SAMPLING * limits.max_num_seqs * m.vocab_size + GRAPHS


def kv_memory(model: StepModel, limits: Limits) -> int:
    """Bytes of one rank's cache. Raises ValueError where weights and steps leave none."""
    if limits.kv_memory is not None:
        return limits.kv_memory // model.ranks
    memory, steps = model.gpu.sheet.memory, step_bytes(model, limits)
    left = int(GPU_SHARE * (memory - CONTEXT - model.weight_bytes - steps))
    if left <= 0:
        raise ValueError(
            f"tensor_parallel_size is {model.ranks}, with {model.weight_bytes / 1e9:.1f} GB of "
            f"weights on each {model.gpu.name}, and steps of {steps / 1e9:.1f} GB; "
            f"it has {memory / 1e9:.0f} GB"
        )
    return left


def pages_of(model: StepModel, limits: Limits) -> CacheSize:
    """Pages of one rank's cache, as the engine would have them. Raises ValueError for none."""
    prefixes = limits.prefix_caching and model.rule.shares_prefixes
    return cache_size(_spec(model), kv_memory(model, limits), limits.max_num_seqs, prefixes)


def sequences_that_fit(model: StepModel, limits: Limits, tokens: int) -> int:
    """How many sequences of so many tokens have room at a time. Raises ValueError for none."""
    size = pages_of(model, limits)
    fit = size.stored_pages // max(1, model.rule.stored_blocks(tokens))
    if model.rule.dense_pages:
        fit = min(fit, size.dense_pages // model.rule.dense_pages)
    if fit < 1:
        raise ValueError(
            f"a sequence of {tokens:,} tokens takes {sequence_bytes(model, tokens) / 1e9:.1f} GB, "
            f"and {model.ranks * kv_memory(model, limits) / 1e9:.1f} are left for all of them"
        )
    return fit


def sequence_bytes(model: StepModel, tokens: int) -> int:
    """Of one sequence, on all ranks together."""
    rule, spec = model.rule, _spec(model)
    stored = rule.stored_blocks(tokens) * spec.stored_bytes
    return model.ranks * (stored + rule.dense_pages * spec.dense_bytes)


def _spec(model: StepModel) -> CacheSpec:
    return CacheSpec(model.kv, model.shape, model.dtype, torch.device("cpu"))
