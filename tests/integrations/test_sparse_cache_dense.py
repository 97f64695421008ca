"""With a dense spec, `generate` over a SparseCache gives what transformers' own cache gives."""

import pytest
import torch

from gossamer.integrations.transformers import SparseCache, load_model, use_gossamer
from tests.engine.serving import TEXT, need_smollm2
from tests.integrations.generating import endless, endless_tiny, generated
from tests.models.tiny import FAMILIES, random_ids

pytest.importorskip("transformers")

LENGTHS = (1, 29, 64, 97, 128)
# 12 prompts on their own and 8 in one batch: ends in the middle, at, before and after a block.
ALONE = (1, 2, 5, 16, 31, 32, 33, 48, 64, 65, 96, 100)
BATCH = (7, 40, 63, 97, 128, 150, 200, 33)


@pytest.fixture(scope="module")
def smollm2():
    """(model, 20 prompts of real text)"""
    model, tokenizer = load_model(need_smollm2())
    ids = tokenizer(TEXT.read_text())["input_ids"]
    lengths = (*ALONE, *BATCH)
    starts = range(0, 300 * len(lengths), 300)
    return endless(model), [ids[at : at + n] for at, n in zip(starts, lengths, strict=True)]


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
    expected = generated(model, prompts, 40, **options)
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


def test_smollm2(smollm2):
    """20 prompts, 8 of them in one batch, token for token."""
    model, prompts = smollm2
    batches = [[prompt] for prompt in prompts[:12]] + [prompts[12:]]
    expected = [generated(model, batch, 6) for batch in batches]
    with use_gossamer(model):
        assert [generated(model, batch, 6) for batch in batches] == expected
