"""The sparse cache on a GPU: against transformers there, and against itself on the CPU."""

import copy

import pytest
import torch

from gossamer.integrations.transformers import SparseCache, use_gossamer, use_masked_attention
from gossamer.masks import Sliding
from tests.integrations.encoders import tiny_bert
from tests.integrations.generating import endless_tiny, generated, padded
from tests.models.tiny import random_ids

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

SPECS = ("dense", "sparse:k=40,v=24", "sparse:k=32,v=32,window=64,sink=32,values=int8")
LENGTHS = (1, 33, 64, 200, 700)
# Logits relative to the largest. In 16 bits rounding decides between entries that are nearly equal.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}


def model_of(family="llama"):
    return endless_tiny(family, head_dim=64, max_position_embeddings=2048)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_dense_equals_transformers(family):
    model = model_of(family).cuda()
    prompts = [random_ids(length).tolist() for length in LENGTHS]
    for options in ({}, {"num_beams": 3}):
        expected = generated(model, prompts, 40, **options)
        with use_gossamer(model):
            got = generated(model, prompts, 40, **options)
        same = sum(a == b for a, b in zip(got, expected, strict=True))
        assert same >= len(prompts) - 1  # float32 products of torch differ in the last bits


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@torch.inference_mode()
def test_logits_are_those_of_the_cpu(spec, dtype):
    """A padded prompt and 70 tokens, which compress blocks and grow the pools."""
    torch.manual_seed(1)
    cpu = model_of().to(dtype).float()
    gpu = copy.deepcopy(cpu).to("cuda", dtype)
    inputs = padded([random_ids(length).tolist() for length in LENGTHS])
    extra, found = torch.stack([random_ids(70) for _ in LENGTHS]), []
    for model in (cpu, gpu):
        cache = SparseCache(model.config, spec)
        with use_gossamer(model, spec):
            ids = torch.cat([inputs["input_ids"], extra], 1).to(model.device)
            mask = torch.cat([inputs["attention_mask"], torch.ones_like(extra)], 1).to(model.device)
            logits, at = [], 0
            for end in (LENGTHS[-1], *range(LENGTHS[-1] + 1, ids.shape[1] + 1)):
                out = model(
                    ids[:, at:end],
                    attention_mask=mask[:, :end],
                    position_ids=(mask[:, :end].cumsum(-1) - 1).clamp_min(0)[:, at:],
                    past_key_values=cache,
                )
                logits.append(out.logits[:, -1].float().cpu())
                at = end
        found.append(torch.stack(logits))
        assert cache.lengths == [length + 70 for length in LENGTHS]
    error = (found[1] - found[0]).norm(dim=-1) / found[0].norm(dim=-1)
    assert float(error.median()) < TOLERANCE[dtype]
    assert float(error.max()) < 4 * TOLERANCE[dtype]


@torch.inference_mode()
def test_memory_is_given_back():
    model = model_of().cuda().half()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    cache = SparseCache(model.config, "sparse:k=16,v=16")
    with use_gossamer(model, "sparse:k=16,v=16"):
        generated(model, [random_ids(1500).tolist()], 40, past_key_values=cache)
    assert torch.cuda.memory_allocated() - before < 1.1 * cache.nbytes + (4 << 20)
    assert cache.nbytes < 1.05 * cache.expected_nbytes()
    cache.reset()
    assert torch.cuda.memory_allocated() - before < 4 << 20


@torch.inference_mode()
def test_crop_beams_and_files(tmp_path):
    model, spec = model_of().cuda().half(), "sparse:k=16,v=16"
    prompts, more = [random_ids(150).tolist()] * 2, torch.stack([random_ids(9)] * 2).cuda()
    with use_gossamer(model, spec):
        cache = SparseCache(model.config, spec, rollback=32)
        generated(model, prompts, 20, past_key_values=cache)
        cache.save(tmp_path / "cache.safetensors")
        loaded = SparseCache.load(tmp_path / "cache.safetensors", model.config, device="cuda")
        expected = model(more, past_key_values=cache).logits
        assert torch.equal(model(more, past_key_values=loaded).logits, expected)
        loaded.crop(-9)
        loaded.reorder_cache(torch.tensor([1, 0], device="cuda"))
        again = model(more, past_key_values=loaded).logits
    torch.testing.assert_close(again, expected.flip(0), rtol=2e-2, atol=2e-2)
    with use_gossamer(model):
        cache = SparseCache(model.config)
        model(torch.tensor(prompts).cuda(), past_key_values=cache)
        first = model(more, past_key_values=cache).logits
        cache.crop(-100)
        model(torch.tensor(prompts)[:, 59:].cuda(), past_key_values=cache)
        second = model(more, past_key_values=cache).logits
    torch.testing.assert_close(second, first, rtol=2e-2, atol=2e-2)


@torch.inference_mode()
def test_encoder():
    model = tiny_bert().cuda().half()
    inputs = {k: v.cuda() for k, v in padded([random_ids(90).tolist(), [5] * 40], "right").items()}
    mask = Sliding.symmetric(8)
    seen = mask.dense(90, 90)[0, 0].cuda() & inputs["attention_mask"].bool()[:, None]
    expected = model(inputs["input_ids"], attention_mask=seen[:, None]).last_hidden_state
    with use_masked_attention(model, mask):
        got = model(**inputs).last_hidden_state
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(got[real], expected[real], rtol=2e-2, atol=2e-2)
