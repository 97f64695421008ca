"""Synthetic context: prompts that cost nothing, to measure decoding at lengths that take hours.

All pages hold valid blocks of random K and V from the start. A step that computes prompts sets page
tables and samples from random logits; steps of single tokens run as always, on those pages.
"""

from dataclasses import replace

import torch
from torch import Tensor

from gossamer.engine import LLM
from gossamer.engine.adapters import SetAdapter
from gossamer.engine.runner import ModelRunner
from gossamer.engine.step import StepInput


def fill(llm: LLM, seed: int = 0) -> None:
    """From now on, the engine's prompts are not computed. ValueError for tensor parallelism."""
    engine = llm.engine
    if engine.config.tensor_parallel_size > 1:
        raise ValueError(
            f"tensor_parallel_size is {engine.config.tensor_parallel_size}; "
            "must be 1 for a synthetic context"
        )
    runner = engine.built.runner
    generator = torch.Generator(runner.device).manual_seed(seed)
    runner.cache.randomise(generator)
    engine.executor = FillExecutor(runner, generator)


class FillExecutor:
    """See Executor: one whose prompts are there already."""

    def __init__(self, runner: ModelRunner, generator: torch.Generator) -> None:
        self._runner, self._generator = runner, generator

    @torch.inference_mode()
    def run(self, step: StepInput) -> Tensor:
        if not step.chunks:
            return self._decode(step)
        # What would be compressed in this step is as random in the pages it goes to.
        moves = replace(step.moves, compress=[], pack=[])
        logits = [self._random(sum(span.logits for span in step.chunks))]
        if decodes := len(step.decodes):
            alone = StepInput(step.ids[:decodes], step.decodes, [], moves)
            logits.insert(0, self._decode(alone))
        else:
            _set(self._runner.stored_table, moves.stored)
            _set(self._runner.dense_table, moves.dense)
            self._runner.adapters.enter(moves.adapters)
        return torch.cat(logits)

    @torch.inference_mode()
    def keep(self, rows: list[int], tokens: Tensor) -> None:
        self._runner.keep(rows, tokens)

    def set_adapter(self, change: SetAdapter) -> None:
        self._runner.set_adapter(change)

    def close(self) -> None:
        self._runner.close()

    def _decode(self, step: StepInput) -> Tensor:
        logits = self._runner.run(step)
        assert logits is not None, "rank 0 has logits"
        return logits

    def _random(self, rows: int) -> Tensor:
        decoder = self._runner.decoder
        shape = (rows, decoder.config.vocab_size)
        device = self._runner.device
        return torch.randn(shape, generator=self._generator, device=device).to(decoder.dtype)


def _set(table: Tensor, entries: list[tuple[int, int, int]]) -> None:
    if entries:
        row, block, page = torch.tensor(entries, device=table.device).T
        table[row, block] = page.int()
