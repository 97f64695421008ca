"""With a dense spec, `generate` over a SparseCache gives what transformers' own cache gives."""

import pytest
import torch

from gossamer.integrations.transformers import SparseCache, use_gossamer
from tests.integrations.generating import by_transformers, endless, endless_tiny, generated
from tests.models.tiny import FAMILIES, SIZES, random_ids

transformers = pytest.importorskip("transformers")

LENGTHS = (1, 29, 64, 97, 128)
PLAIN = {**SIZES, "head_dim": 16}
SLIDING = {**PLAIN, "sliding_window": 40}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_local_experts": 4}
# Fused and other projections, norms, scales, experts, learned positions.
OTHERS = {
    "Cohere2": SLIDING,
    "GPT2": {"vocab_size": 97, "n_embd": 64, "n_layer": 2, "n_head": 4},
    "Gemma": PLAIN,
    "Gemma3Text": SLIDING,
    "Granite": PLAIN,
    "Mixtral": {**SLIDING, **EXPERTS},
    "Olmo2": PLAIN,
    "Phi3": SLIDING,
    "Starcoder2": SLIDING,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_tiny_models(family):
    """Batches with left padding, across blocks, in models with and without sliding windows."""
    model = endless_tiny(family)
    prompts = [random_ids(length).tolist() for length in LENGTHS]
    expected = generated(model, prompts, 40)
    with use_gossamer(model):
        assert generated(model, prompts, 40) == expected
    cache = SparseCache(model.config)
    model.set_attn_implementation("gossamer")
    assert generated(model, prompts, 40, past_key_values=cache) == expected
    assert cache.lengths == [length + 39 for length in LENGTHS]


@pytest.mark.parametrize(("name", "settings"), OTHERS.items(), ids=OTHERS)
def test_other_models(name, settings):
    """Whatever passes K and V through its cache untouched."""
    config = getattr(transformers, f"{name}Config")(**{**settings, "pad_token_id": 0})
    name = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}.get(
        name, f"{name}ForCausalLM"
    )
    model = endless(getattr(transformers, name)(config).eval())
    prompts = [random_ids(length).tolist() for length in (70, 33)]
    expected = generated(model, prompts, 30)
    with use_gossamer(model):
        assert generated(model, prompts, 30) == expected


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 4},
        {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.3},
        {"prefill_chunk_size": 24},
        {"do_sample": True, "top_k": 20, "num_return_sequences": 3},
    ],
    ids=["beams", "returned beams", "chunks", "samples"],
)
def test_ways_to_generate(family, options):
    model = endless_tiny(family)
    prompts = [random_ids(length).tolist() for length in (64, 64, 64)]
    if "prefill_chunk_size" not in options:  # in chunks a mask with padding is not right everywhere
        prompts[0] = prompts[0][:20]
    torch.manual_seed(3)
    expected = by_transformers(model, prompts, 40, **options)
    torch.manual_seed(3)
    with use_gossamer(model):
        assert generated(model, prompts, 40, **options) == expected


def test_half_precision():
    """In bfloat16 rounding differs; the first tokens of most rows do not."""
    model = endless_tiny("llama").bfloat16()
    prompts = [random_ids(100).tolist() for _ in range(16)]
    expected = generated(model, prompts, 1)
    with use_gossamer(model):
        got = generated(model, prompts, 1)
    assert sum(a == b for a, b in zip(got, expected, strict=True)) >= 14
