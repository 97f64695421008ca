"""A step with prompts in pieces, with attention between them: outputs are those of a whole pass.

Pieces are CUDA graphs on a GPU (test_gpu.py); here a replay computes what a graph would.
"""

import itertools

import pytest
import torch

from gossamer.engine import SamplingParams
from gossamer.engine.pieces import StepPieces, piece_sizes
from tests.engine.serving import assert_empty, cpu_llm, record
from tests.models.tiny import tiny_directory

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
SIZES = (16, 48, 100)  # of 100 tokens or fewer: longer steps take the whole pass


class Piece:
    """Goes on with the pass to where the next layer attends; the first piece begins it anew."""

    def __init__(self, passes, begin=None):
        self.passes, self.begin = passes, begin

    def replay(self):
        if self.begin is not None:
            self.passes.append(self.begin())
        next(self.passes[-1], None)


class ReplayedPieces(StepPieces):
    def fill(self, sizes):
        for size in sizes:
            passes, layers = [], len(self._decoder.weights.layers)
            rest = [Piece(passes) for _ in range(layers)]
            self._graphs[size] = [Piece(passes, lambda size=size: self._walk(size)), *rest]


def logits_of(directory, kv, pieces):
    generator = torch.Generator().manual_seed(1)
    prompts = [
        torch.randint(3, 90, (n,), generator=generator).tolist() for n in (1, 40, 90, 7, 130)
    ]
    with cpu_llm(directory, kv=kv, max_num_batched_tokens=128) as llm:
        runner = llm.engine.built.runner
        if pieces:
            runner.pieces[0] = ReplayedPieces(runner.decoder, runner.turned, 128)
            runner.pieces[0].fill(SIZES)
        seen = record(llm)
        llm.generate(prompts, GREEDY)
        assert_empty(llm)
        return {(name, at): row for name, rows in seen.items() for at, row in rows.items()}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kv", ["dense", "sparse:k=8,v=8", "dense:int8"])
def test_same_logits(tmp_path, family, kv):
    torch.manual_seed(3)
    tiny_directory(family, tmp_path)
    expected, got = (logits_of(tmp_path, kv, pieces) for pieces in (False, True))
    assert got.keys() == expected.keys()
    assert max((got[at] - expected[at]).abs().max() for at in got) < 1e-4


def test_sizes():
    for most in (16, 40, 64, 100, 2048, 8192):
        sizes = piece_sizes(most)
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == most
        assert all(b <= max(a + 16, a * 1.25) for a, b in itertools.pairwise(sizes))
