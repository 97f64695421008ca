"""What a SparseCache refuses, in one sentence that says the way out."""

import pytest
import torch

from gossamer.integrations.calibrating import calibrate
from gossamer.integrations.transformers import SparseCache, register_attention, use_gossamer
from tests.integrations.encoders import tiny_bert
from tests.integrations.generating import endless_tiny, generated, padded
from tests.models.tiny import SIZES, random_ids

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("no_gradients")


@pytest.fixture
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def model():
    register_attention()
    found = endless_tiny("llama")
    found.set_attn_implementation("gossamer")
    return found


# ---- models --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("Gemma2", {"head_dim": 16}, "gemma2 has soft-capped scores .*own cache for this model"),
        ("DeepseekV3", {}, r"latent attention \(MLA\) \(kv_lora_rank\)"),
        ("T5", {}, "t5 is an encoder-decoder; must be a decoder"),
        ("Qwen3Next", {}, "layers of linear_attention; must be of full_attention and sliding"),
        ("Mamba", {}, "mamba has"),
        ("Llama", {"num_attention_heads": 32, "num_key_value_heads": 1, "hidden_size": 256},
         "32 query heads and 1 KV heads; must be at most 16 times"),
        ("Llama", {"head_dim": 20}, "head_dim is 20; must be a multiple of 8"),
    ],
)  # fmt: skip
def test_models(name, settings, message):
    config = getattr(transformers, f"{name}Config")(**settings)
    with pytest.raises(ValueError, match=message):
        SparseCache(config)


def test_a_model_that_only_attention_knows():
    """gpt-oss says nothing in its config that would tell; its attention does."""
    own = {"head_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 1}
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**{**SIZES, **own})).eval()
    with use_gossamer(model), pytest.raises(ValueError, match="has s_aux; SparseCache supports"):
        model(random_ids(9)[None])


def test_not_a_config(model):
    with pytest.raises(TypeError, match="config is LlamaForCausalLM; must be a config of"):
        SparseCache(model)
    with pytest.raises(TypeError, match="config is str"):
        SparseCache("llama")


def test_a_model_that_does_not_generate():
    message = "BertModel does not generate; must be a causal language model, or see use_masked"
    with pytest.raises(ValueError, match=message), use_gossamer(tiny_bert()):
        pass


def test_other_attention(model):
    """Another implementation would see the new tokens alone: refused at its first operation."""
    for name in ("sdpa", "eager"):
        model.set_attn_implementation(name)
        cache = SparseCache(model.config)
        with pytest.raises(ValueError, match=r"call model.set_attn_implementation\('gossamer'\)"):
            model(random_ids(9)[None], past_key_values=cache)


def test_changed_keys(model):
    """As by a model that normalises K after the cache."""
    cache, attention = SparseCache(model.config), model.model.layers[0].self_attn
    update = cache.update

    def changed(k, v, layer, *args, **kwargs):
        k, v = update(k, v, layer, *args, **kwargs)
        assert (k.shape, k.dtype) == (v.shape, v.dtype)  # looking is fine
        return k * 2, v

    cache.update = changed
    assert attention.layer_idx == 0
    with pytest.raises(ValueError, match=r"a model that changes them after Cache.update is not"):
        model(random_ids(9)[None], past_key_values=cache)
    k, _ = update(*(torch.zeros(1, 2, 3, 16) for _ in range(2)), 0)
    with pytest.raises(ValueError, match=r"a model that changes them after Cache.update is not"):
        k.mul_(2)


def test_no_cache(model):
    with pytest.raises(ValueError, match="pass past_key_values=SparseCache"):
        model(random_ids(9)[None])


# ---- caches --------------------------------------------------------------------------------


def test_specs(model):
    for spec, message in (
        ("sparse:k=8", "v= is missing"),
        ("sparse:k=8,v=8,k_policy=think", "policy is 'think'; must be one of magnitude"),
        ("sparse:k=8,v=8,basis=pca", "needs a calibration; make one by `gossamer calibrate`"),
        ("sparse:k=17,v=8", "keep is 17; must be 1 to 16"),
        ("coded:25%", "needs a calibration; make one by `gossamer calibrate`"),
        ("coded:4x32", "k: values is '4x32', which is 32 channels; must add up to 16"),
    ):
        with pytest.raises(ValueError, match=message):
            SparseCache(model.config, spec)
    with pytest.raises(ValueError, match="rollback is -1; must be an integer of at least 0"):
        SparseCache(model.config, rollback=-1)


def test_calibration_of_another_model(model):
    other = calibrate(endless_tiny("llama"), random_ids(400), context=100)
    spec, ids = "sparse:k=8,v=8,v_basis=pca", random_ids(9)[None]
    model.set_attn_implementation("sdpa")
    with (
        pytest.raises(ValueError, match="belongs to another model: layer 0 has other K"),
        use_gossamer(model, spec, calibration=other),
    ):
        pass
    model.set_attn_implementation("gossamer")
    with pytest.raises(ValueError, match="belongs to another model: layer 0 has other K"):
        model(ids, past_key_values=SparseCache(model.config, spec, calibration=other))
    deeper = endless_tiny("llama", num_hidden_layers=4)
    with pytest.raises(ValueError, match=r"is for 3 layers, .* the model has 4 layers"):
        SparseCache(deeper.config, spec, calibration=other)


def test_another_model(model):
    other, cache = endless_tiny("llama"), SparseCache(model.config)
    other.set_attn_implementation("gossamer")
    ids = random_ids(9)[None]
    model(ids, past_key_values=cache)
    with pytest.raises(ValueError, match="holds tokens of another model; make a SparseCache for"):
        other(ids, past_key_values=cache)
    wide = endless_tiny("llama-mha")
    wide.set_attn_implementation("gossamer")
    with pytest.raises(ValueError, match=r"shape \[1, 4, 9, 16\]; must be \[rows, 2, tokens, 16\]"):
        wide(ids, past_key_values=cache)


def test_type_rows_and_a_broken_pass(model):
    cache, ids = SparseCache(model.config), random_ids(9)[None]
    model(ids, past_key_values=cache)
    with pytest.raises(ValueError, match=r"with type torch.bfloat16, and the cache has torch.floa"):
        model.bfloat16()(ids, past_key_values=cache)
    model.float()
    with pytest.raises(ValueError, match="with rows 2, and the cache has 1"):
        model(ids.expand(2, -1), past_key_values=cache)
    broken = model.model.layers[1].mlp.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(ids, past_key_values=cache)
    broken.remove()
    with pytest.raises(ValueError, match=r"ended before layer 2 had its tokens; .* reset\(\) it"):
        model(ids, past_key_values=cache)
    cache.reset()
    model(ids, past_key_values=cache)


def test_gradients(model):
    with torch.enable_grad(), pytest.raises(ValueError, match=r"call the model under torch.no_gr"):
        model(random_ids(9)[None], past_key_values=SparseCache(model.config))


def test_prompts_in_one_piece(model):
    cache = SparseCache(model.config, "sparse:k=8,v=8,prefill=dense")
    generated(model, [random_ids(70).tolist()], 3, past_key_values=cache)
    with pytest.raises(ValueError, match="prompts are seen in one piece, and it has tokens alre"):
        generated(model, [random_ids(90).tolist()], 3, past_key_values=cache)


# ---- masks ---------------------------------------------------------------------------------


def test_padding(model):
    prompts = [random_ids(9).tolist(), random_ids(4).tolist()]
    right = padded(prompts, "right")
    with pytest.raises(ValueError, match=r"row 1 .* padding after tokens; .*side = 'left'"):
        model(**right, past_key_values=SparseCache(model.config))
    cache = SparseCache(model.config)
    left = padded(prompts)
    model(**left, past_key_values=cache)
    more = {"input_ids": torch.ones(2, 2, dtype=torch.long), "past_key_values": cache}
    with pytest.raises(ValueError, match=r"has shape \[2, 2\]; must be \[2, 11\]: 9 tokens from"):
        model(attention_mask=torch.ones(2, 2), **more)
    with pytest.raises(ValueError, match=r"has \[9, 9\] tokens from before, .*has \[9, 4"):
        model(attention_mask=torch.ones(2, 11), **more)
    empty = torch.ones(2, 9)
    empty[1] = 0
    with pytest.raises(ValueError, match="row 1 of attention_mask has no token"):
        model(left["input_ids"], attention_mask=empty, past_key_values=SparseCache(model.config))


def test_masks_of_another_kind(model):
    ids, cache = random_ids(9)[None], SparseCache(model.config)
    with pytest.raises(ValueError, match=r"has shape \[1, 1, 9, 9\]; must be \[1, 9"):
        model(ids, attention_mask=torch.ones(1, 1, 9, 9), past_key_values=cache)
