"""Bytes: how many sequences fit a memory, and what a decode step has to read."""

import torch

from gossamer.engine import Engine
from gossamer.engine.cache_size import DENSE_SHARE
from gossamer.kv import Dense, KVConfig, KVShape, Side
from gossamer.kv.layouts import PLAIN
from gossamer.kv.rule import CacheRule
from gossamer.models.matrix import Matrix
from gossamer.ops.kv_block import BLOCK_TOKENS

SPARE = 2  # sequences' dense pages that the engine has beyond those of all that run


def sequence_bytes(
    kv: KVConfig, shape: KVShape, dtype: torch.dtype, tokens: int
) -> tuple[int, int]:
    """(stored, dense) bytes of one sequence of `tokens` tokens."""
    rule, side = CacheRule.of(kv, dtype), Side(Dense(PLAIN[dtype]))
    block = KVConfig(side, side).block_bytes(shape)
    stored = rule.stored_blocks(tokens)
    return stored * kv.block_bytes(shape), rule.dense_pages * block


def memory_for(
    kv: KVConfig, shape: KVShape, dtype: torch.dtype, tokens: int, sequences: int
) -> int:
    """Bytes in which `sequences` run without preemption, with max_num_seqs one more."""
    stored, dense = sequence_bytes(kv, shape, dtype, tokens)
    windows = (sequences + SPARE) * dense
    return max(sequences * stored + windows + kv.block_bytes(shape), DENSE_SHARE * windows)


def sequences_that_fit(
    kv: KVConfig, shape: KVShape, dtype: torch.dtype, tokens: int, memory: int
) -> int:
    """How many sequences of `tokens` tokens run in `memory`. ValueError for none."""
    stored, dense = sequence_bytes(kv, shape, dtype, tokens)
    fit = (memory - SPARE * dense) // (stored + dense)
    if dense:
        fit = min(fit, memory // DENSE_SHARE // dense - SPARE)
    if fit < 1:
        least = memory_for(kv, shape, dtype, tokens, 1)
        raise ValueError(
            f"kv_memory is {memory} bytes; must be at least {least} for {tokens} tokens of {kv}"
        )
    return fit


def weight_bytes(engine: Engine) -> int:
    """Weights that a step reads; of an embedding that is not the head too, only some rows."""
    return sum(x.nbytes for x in _step_weights(engine))


def kv_bytes_read(engine: Engine, tokens: int) -> int:
    """K and V that the newest of `tokens` tokens attends to, in all layers."""
    rule, size = engine.built.rule, engine.built.size
    if rule.plain:
        return tokens * size.stored_bytes // BLOCK_TOKENS
    stored = rule.stored_blocks(tokens)
    dense = (tokens - stored * BLOCK_TOKENS) * size.dense_bytes // BLOCK_TOKENS
    return stored * size.stored_bytes + dense


def weight_count(engine: Engine) -> int:
    """Parameters that take part in the GEMMs of a step."""
    return sum(x.numel() for x in _step_weights(engine))


def _step_weights(engine: Engine) -> list[Matrix]:
    weights = engine.built.runner.decoder.weights
    matrices: list[Matrix] = [weights.norm, weights.head]
    return matrices + [x for layer in weights.layers for x in vars(layer).values() if x is not None]
