"""With a sparse spec, `generate` over a SparseCache gives what Gossamer's engine gives."""

import pytest
import torch

from gossamer.integrations.calibrating import calibrate
from gossamer.integrations.transformers import SparseCache, use_gossamer
from tests.engine.serving import cpu_llm, greedy, tokens_of
from tests.integrations.generating import endless, generated
from tests.models.tiny import FAMILIES, random_ids, tiny_directory

pytest.importorskip("transformers")

LENGTHS = (1, 40, 64, 97, 160)
SPECS = (
    "sparse:k=8,v=8,window=0",
    "sparse:k=8,v=6,window=64",
    "sparse:k=8,v=8,sink=32",
    "sparse:k=8,v=8,values=int8",
    "k=dense:int4@channel,v=sparse:8:int4",
    "sparse:k=8,v=8,prefill=dense",
    "dense:int8",
)
ENGINE_FAMILIES = sorted(set(FAMILIES) - {"llama-yarn", "llama-linear"})


def prompts_of(lengths=LENGTHS):
    return [random_ids(length).tolist() for length in lengths]


@pytest.mark.parametrize("spec", SPECS)
def test_specs(spec, tmp_path):
    """Token for token. Seeds are fixed: a tie of two entries may end either way."""
    torch.manual_seed(5)
    model, prompts = endless(tiny_directory("llama", tmp_path)), prompts_of()
    expected = tokens_of(cpu_llm(tmp_path, kv=spec).generate(prompts, greedy(40)))
    with use_gossamer(model, spec):
        assert generated(model, prompts, 40) == expected


@pytest.mark.parametrize("family", ENGINE_FAMILIES)
def test_families(family, tmp_path):
    torch.manual_seed(6)
    model, prompts = endless(tiny_directory(family, tmp_path)), prompts_of()
    expected = tokens_of(cpu_llm(tmp_path, kv="sparse:k=8,v=8").generate(prompts, greedy(40)))
    with use_gossamer(model, "sparse:k=8,v=8"):
        assert generated(model, prompts, 40) == expected
        dense = generated(endless(tiny_directory(family, tmp_path)), prompts, 40)
    assert dense != expected  # or nothing is pruned


@pytest.mark.parametrize(
    "spec",
    [
        "sparse:k=8,v=8,basis=pca,k_policy=weighted",
        "sparse:k=8,v=8,v_basis=pca,k_policy=gradient",
        "sparse:k=8,v=8,k_basis=pca",
        "coded:33%",
        "k=coded:4x16@row,v=coded:4x8+2x8@row,window=0",
        "k=dense:int4@channel,v=coded:4x16",
    ],
)
def test_calibrated(spec, tmp_path):
    """The engine folds V's basis into weights, the cache applies it: equal up to rounding."""
    torch.manual_seed(7)
    model, prompts = endless(tiny_directory("llama", tmp_path)), prompts_of()
    calibration, file = calibrate(model, random_ids(400), context=100), tmp_path / "kv.safetensors"
    calibration.save(file)
    llm = cpu_llm(tmp_path, kv=spec, calibration=file)
    expected = tokens_of(llm.generate(prompts, greedy(40)))
    before = {name: p.clone() for name, p in model.named_parameters()}
    for given in (calibration, file, str(file)):
        with use_gossamer(model, spec, calibration=given):
            assert generated(model, prompts, 40) == expected
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_turns_are_one_prompt(tmp_path):
    """A conversation in one cache is, token for token, the same text in one piece."""
    torch.manual_seed(8)
    model = endless(tiny_directory("llama", tmp_path))
    texts = prompts_of((50, 83))
    llm = cpu_llm(tmp_path, kv="sparse:k=8,v=8")
    cache = SparseCache(model.config, "sparse:k=8,v=8")
    with use_gossamer(model, "sparse:k=8,v=8"):
        for more in ((45, 45), (1, 1), (70, 70)):
            expected = tokens_of(llm.generate(texts, greedy(20)))
            got = generated(model, texts, 20, past_key_values=cache)
            assert got == expected
            texts = [
                text + answer + random_ids(count).tolist()
                for text, answer, count in zip(texts, got, more, strict=True)
            ]
    assert cache.lengths == [50 + 45 + 1 + 3 * 20 - 1, 83 + 45 + 1 + 3 * 20 - 1]
