"""With a dense cache the engine gives, token for token, what transformers' `generate` gives."""

import pytest
import torch

from gossamer.integrations.transformers import load_model
from tests.engine.serving import TEXT, assert_empty, cpu_llm, greedy, need_smollm2, tokens_of
from tests.models.tiny import random_ids, tiny_directory

pytest.importorskip("transformers")

# A prompt for every way to end: alone, at the end of a block, before and after it, in the middle.
LENGTHS = (1, 2, 3, 5, 8, 16, 24, 31, 32, 33, 48, 63, 64, 65, 96, 100, 128, 200, 300, 2000)
FAMILIES = {
    "llama": {},
    "llama-tied": {},
    "llama-mha": {},
    "llama-bias": {},
    "llama-llama3": {},
    "mistral": {"sliding_window": 37},
    "qwen2": {},
    "qwen2-sliding": {"sliding_window": 20},
    "qwen3": {},
}


@torch.inference_mode()
def generated(model, prompt: list[int], new_tokens: int) -> list[int]:
    """What transformers adds to a prompt; nothing ends it early."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=new_tokens,
        min_new_tokens=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert out.shape[1] == len(prompt) + new_tokens
    return out[0, len(prompt) :].tolist()


def without_end(model):
    """A model that has no token to end with; `generate` would take it from here."""
    model.generation_config.eos_token_id = None
    model.config.eos_token_id = None
    return model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("budget", [64, 8192])
def test_tiny_models(family, budget, tmp_path):
    """Prompts in chunks and in one piece; sliding windows that are shorter than the prompts."""
    model = without_end(tiny_directory(family, tmp_path, **FAMILIES[family]))
    prompts = [random_ids(length).tolist() for length in (50, 64, 97, 200)]
    llm = cpu_llm(tmp_path, max_num_batched_tokens=budget)
    assert llm.engine.built.rule.plain
    got = tokens_of(llm.generate(prompts, greedy(40)))
    assert got == [generated(model, prompt, 40) for prompt in prompts]
    assert_empty(llm)


def test_smollm2():
    """20 prompts of 1 to 2,000 tokens of real text, in one batch of a real model."""
    path = need_smollm2()
    model, tokenizer = load_model(path)
    ids = tokenizer(TEXT.read_text())["input_ids"]
    starts = range(0, 500 * len(LENGTHS), 500)
    prompts = [ids[start : start + n] for start, n in zip(starts, LENGTHS, strict=True)]
    llm = cpu_llm("smollm2", kv_memory="400MB", max_num_batched_tokens=512)
    got = tokens_of(llm.generate(prompts, greedy(8)))
    model = without_end(model)
    assert got == [generated(model, prompt, 8) for prompt in prompts]
    assert_empty(llm)
