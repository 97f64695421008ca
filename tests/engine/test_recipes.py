"""A policy and a mask made by the recipes (CONTRIBUTING.md, docs/masks.md) work in the engine."""

import numpy as np
import pytest
import torch
from torch import Tensor

from gossamer.engine import LLM, RequestOutput
from gossamer.integrations.calibrating import STATISTICS, calibrate
from gossamer.integrations.transformers import kv_shape
from gossamer.kv.policies import POLICIES, Policy, Ranking
from gossamer.masks import Causal, Documents, Full, Mask, per_batch, per_head
from tests.engine.oracle import oracle_logits
from tests.engine.serving import (
    Logits,
    assert_empty,
    cpu_llm,
    greedy,
    need_smollm2,
    record,
    worst,
)
from tests.kv import test_policies
from tests.masks.toy import Checkerboard
from tests.models.tiny import random_ids, tiny_directory

LENGTHS = (1, 33, 70, 129, 200, 230)
NEW = 10


class EvenChannels(Policy):
    """Step 1: a class in a file of gossamer/kv/policies. Rank by |x|, even channels first."""

    name = "even_channels"

    def rank(self, x: Tensor, weights: Tensor | None) -> Ranking:
        scores = x.float().abs()
        scores[..., ::2] += 100
        return Ranking(scores=scores)


class KeySize(Policy):
    """And a calibrated one: rank by |k_c| over the root mean square of k_c."""

    name = "key_size"
    sides = ("k",)
    statistic = "key_sizes"

    def rank(self, x: Tensor, weights: Tensor | None) -> Ranking:
        assert weights is not None, "the cache has its statistic"
        return Ranking(weights=1 / weights)


@pytest.fixture
def toys(monkeypatch):
    """Step 2: both in POLICIES. For the calibrated one step 4: how its statistic is measured."""
    for policy in (EvenChannels(), KeySize()):
        monkeypatch.setitem(POLICIES, policy.name, policy)
    monkeypatch.setitem(STATISTICS, "key_sizes", key_moments)


def key_moments(model, token_ids, *, context, on_window=None) -> Tensor:
    shape = kv_shape(model)
    sizes = torch.arange(1.0, shape.head_dim + 1, dtype=torch.float64)
    return sizes.diag().expand(shape.layers, shape.kv_heads, -1, -1)


@pytest.mark.usefixtures("toys")
def test_the_oracle_is_all_that_a_new_policy_needs(monkeypatch):
    """Step 3: a line in tests/kv/test_policies.py, whose matrix then runs over it."""
    first = 100 * (1 - np.arange(test_policies.HEAD_DIM) % 2)
    oracles = {
        "even_channels": lambda x, weights: abs(x) + first,
        "key_size": lambda x, weights: abs(x) / weights,
    }
    for name, oracle in oracles.items():
        monkeypatch.setitem(test_policies.ORACLES, name, oracle)
        test_policies.test_exactly_as_much_is_kept(name, "int8")
        test_policies.test_what_is_kept_is_what_the_policy_says(name)
        test_policies.test_a_row_is_ranked_by_itself(name)
    test_policies.test_every_policy_has_an_oracle()


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize("spec", ["even_channels,v_policy=even_channels", "key_size,basis=pca"])
def test_a_new_policy_ranks_in_the_engine(tmp_path, monkeypatch, spec):
    model = tiny_directory("llama", tmp_path)
    calibration = calibrate(model, random_ids(600), context=300)
    path = tmp_path / "calibration.safetensors"
    calibration.save(path)
    kv = f"sparse:k=6,v=6,sink=32,k_policy={spec}"
    llm = cpu_llm(tmp_path, kv=kv, calibration=path, max_num_batched_tokens=64)
    logits = record(llm)
    outputs = [llm.generate([random_ids(n).tolist()], greedy(NEW))[0] for n in LENGTHS]
    # A tie moves an entry, and logits by 1e-3; another ranking moves long ones by much more.
    check(llm, outputs, logits, calibration=calibration, tolerance=1e-2)
    monkeypatch.setitem(POLICIES, "even_channels", POLICIES["magnitude"])
    monkeypatch.setitem(POLICIES, "key_size", EvenChannels())
    with pytest.raises(AssertionError):
        check(llm, outputs, logits, calibration=calibration, tolerance=1e-2)


@pytest.mark.usefixtures("toys")
def test_calibrations_from_before_a_policy_serve_the_others(tmp_path):
    """As the shipped one does, until it is made again."""
    need_smollm2()
    with cpu_llm("smollm2", kv="sparse:k=32,v=32,k_policy=weighted") as llm:
        assert llm.generate("The sea", greedy(2))[0].outputs[0].text
    with pytest.raises(ValueError, match="k_policy=key_size needs k_key_sizes; make it"):
        cpu_llm("smollm2", kv="sparse:k=32,v=32,k_policy=key_size")


@pytest.mark.parametrize("spec", ["dense", "sparse:k=8,v=8", "sparse:k=8,v=8,window=0,sink=32"])
@pytest.mark.parametrize("budget", [64, 8192])
def test_prompts_attend_under_a_new_mask(tmp_path, spec, budget):
    """In chunks, in one piece, and again after preemption: the mask holds for the prompt alone."""
    tiny_directory("llama", tmp_path)
    mask = Checkerboard(16)
    llm = cpu_llm(tmp_path, kv=spec, prompt_mask=mask, max_num_batched_tokens=budget)
    logits = record(llm)
    prompts = [random_ids(length).tolist() for length in LENGTHS]
    outputs = llm.generate(prompts, greedy(NEW))
    check(llm, outputs, logits, mask=mask, tolerance=1e-2)
    with pytest.raises(AssertionError):
        check(llm, outputs, logits, tolerance=1e-2)
    pool = llm.engine.manager.stored
    taken = [pool.take() for _ in range(pool.size - 11)]
    again = llm.generate(prompts, greedy(60))
    for first, second in zip(outputs, again, strict=True):
        assert second.outputs[0].token_ids[:NEW] == first.outputs[0].token_ids
    assert llm.engine.stats.preemptions > 0
    assert llm.engine.stats.cached_tokens == 0  # a block is another one in a prompt and after it
    for page in taken:
        pool.release(page)
    assert_empty(llm)


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        ("causal", TypeError, "prompt_mask is str; must be a gossamer.masks.Mask"),
        (Documents([40, 24]), ValueError, r"is for lengths \(64, 64\); must be for prompts of any"),
        (per_batch([Causal(), Full()]), ValueError, "is for 2 batch elements; must be for prompts"),
        (per_head([Causal(), Full()]), ValueError, "is for 2 heads; must be for all, or for 4"),
    ],
)
def test_masks_that_prompts_cannot_have(tmp_path, mask, error, message):
    tiny_directory("llama", tmp_path)
    with pytest.raises(error, match=message):
        cpu_llm(tmp_path, prompt_mask=mask)


def check(
    llm: LLM,
    outputs: list[RequestOutput],
    logits: Logits,
    *,
    tolerance: float,
    calibration=None,
    mask: Mask | None = None,
) -> None:
    """Logits are the oracle's."""
    for output in outputs:
        prompt = output.prompt_token_ids
        ids = [*prompt, *output.outputs[0].token_ids[:-1]]
        decoder = llm.engine.built.runner.decoder
        expected = oracle_logits(decoder, llm.engine.kv, ids, len(prompt), calibration, mask)
        wanted = dict(enumerate(expected[len(prompt) - 1 :], len(prompt) - 1))
        assert worst(logits[output.request_id], wanted) < tolerance
