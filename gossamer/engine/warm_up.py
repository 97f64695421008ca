"""What the first requests would wait for, before there are any: kernels chosen, graphs captured."""

import logging
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import track

from gossamer.engine.graphs import captured_sizes
from gossamer.engine.pieces import StepPieces, piece_sizes
from gossamer.engine.runner import ModelRunner
from gossamer.engine.step import Decodes, Span, StepInput

T = TypeVar("T")
log = logging.getLogger("gossamer.engine")

PROMPTS = (256, 1024, 4096)  # tokens of a step that computes prompts, and as many as there may be

_ADAPTED = ", each without adapters, with one and with several"
MOST_CAPTURED = 8192  # tokens of a step: more are work for the GPU, however small the model


def warm_up(runner: ModelRunner, max_num_seqs: int, max_num_batched_tokens: int) -> None:
    """On a GPU. Tokens of no sequence are computed: nothing is written to any page."""
    start, before = time.perf_counter(), torch.cuda.memory_reserved(runner.device)
    longest = min(max_num_batched_tokens, runner.max_model_len)
    for tokens in _shown("prompts", sorted({*(n for n in PROMPTS if n < longest), longest})):
        runner.run(_prompt(runner.padding_row, tokens))
    assert runner.graphs is not None, "not eager"
    # The largest first: the others fit into its memory.
    sizes = captured_sizes(max_num_seqs)[::-1]
    for size, kind in _shown("CUDA graphs", [*product(sizes, runner.adapters.kinds)]):
        runner.graphs.capture(size, kind)
    captured = _capture_pieces(runner, min(max_num_batched_tokens, MOST_CAPTURED))
    torch.cuda.synchronize(runner.device)
    log.info(
        "CUDA graphs of %d batch sizes up to %d%s, of steps with prompts up to %d tokens: %.2f GB, "
        "ready in %.1f s",
        *(len(sizes), sizes[0], _ADAPTED if len(runner.adapters.kinds) > 1 else "", captured),
        (torch.cuda.memory_reserved(runner.device) - before) / 1e9,
        time.perf_counter() - start,
    )


def _capture_pieces(runner: ModelRunner, most: int) -> int:
    """Up to how many tokens they gain; ranks of tensor parallelism have none."""
    if runner.decoder.shard.size > 1:
        return 0
    plain, captured = StepPieces(runner.decoder, runner.turned, most), 0
    for kind in runner.adapters.kinds:
        pieces = plain.adapted(partial(runner.adapters.masked, kind=kind)) if kind else plain
        for size in _shown("graphs of steps with prompts", piece_sizes(most)):
            if not pieces.capture(size):
                break
            captured, runner.pieces[kind] = max(captured, size), pieces
    return captured


def _prompt(row: int, tokens: int) -> StepInput:
    return StepInput([0] * tokens, Decodes(), [Span(row, 0, tokens, sample=True)])


def _shown(what: str, values: Sequence[T]) -> Iterator[T]:
    """With a bar, where someone looks."""
    console = Console(stderr=True)
    hidden = not console.is_terminal
    yield from track(values, what, console=console, transient=True, disable=hidden)
