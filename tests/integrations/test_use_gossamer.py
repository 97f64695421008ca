"""`with use_gossamer(model, ...)`: what happens inside, and that nothing is left of it outside."""

import copy

import pytest
import torch

from gossamer.integrations.transformers import SparseCache, use_gossamer
from tests.engine.serving import tiny_with_tokenizer
from tests.integrations.generating import endless_tiny, generated, padded
from tests.models.tiny import FAMILIES, random_ids

transformers = pytest.importorskip("transformers")

SPARSE = "sparse:k=8,v=8"


def state(model):
    """Everything that the context could have changed."""
    hooks = {name: len(m._forward_pre_hooks) for name, m in model.named_modules()}
    return (
        model.config.to_dict(),
        model.config._attn_implementation,
        model.generation_config.to_dict(),
        hooks,
        sorted(vars(model)),
        model.generate,
        model.forward,
    )


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_bit_for_bit_as_before(family):
    settings = {"sliding_window": 80} if family == "mistral" else {}  # 7 would see nothing pruned
    model, ids = endless_tiny(family, **settings), torch.stack([random_ids(70) for _ in range(2)])
    weights = copy.deepcopy(model.state_dict())
    before, described = model(ids).logits, state(model)
    with use_gossamer(model, SPARSE):
        inside = model(ids).logits
        generated(model, ids.tolist(), 2)
    assert not torch.equal(inside, before)
    assert state(model) == described
    assert torch.equal(model(ids).logits, before)
    assert all(torch.equal(x, weights[name]) for name, x in model.state_dict().items())


def test_as_before_after_an_error():
    model = endless_tiny("llama")
    described = state(model)
    with pytest.raises(RuntimeError, match="mine"), use_gossamer(model, SPARSE):
        raise RuntimeError("mine")
    assert state(model) == described
    with (
        pytest.raises(ValueError, match="keep is 17; must be 1 to 16"),
        use_gossamer(model, "sparse:k=17,v=8"),
    ):
        pass
    assert state(model) == described


def test_configs_of_parts():
    """Also of models inside of models, each with its own."""
    text = transformers.LlamaConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    config = transformers.LlavaConfig(
        text_config=text,
        vision_config=transformers.CLIPVisionConfig(
            hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
        ),
    )
    model = transformers.LlavaForConditionalGeneration(config)
    model.config.vision_config._attn_implementation_internal = "eager"
    parts = (model.config, model.config.text_config, model.config.vision_config)
    before = [part._attn_implementation for part in parts]
    with use_gossamer(model):
        assert model.config.text_config._attn_implementation == "gossamer"
    assert [part._attn_implementation for part in parts] == before


@torch.inference_mode()
def test_calls_of_the_model_get_a_cache():
    model, ids = endless_tiny("llama"), random_ids(80)[None]
    with use_gossamer(model, SPARSE):
        out = model(ids[:, :70])
        assert isinstance(out.past_key_values, SparseCache)
        assert model(ids[:, :70], None, None, None).past_key_values is not out.past_key_values
        logits = model(ids[:, 70:], past_key_values=out.past_key_values).logits
        torch.testing.assert_close(logits, model(ids).logits[:, 70:], rtol=1e-3, atol=1e-3)


def test_pipeline(tmp_path):
    model = tiny_with_tokenizer(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    pipe = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)
    options = {"max_new_tokens": 8, "do_sample": False, "return_full_text": False}
    text = tokenizer.decode(random_ids(60), skip_special_tokens=True)
    expected = pipe(text, **options)
    with use_gossamer(model):
        assert pipe(text, **options) == expected
    with use_gossamer(model, "sparse:k=4,v=4,window=0"):
        assert len(pipe(text, **options)) == 1
    assert pipe(text, **options) == expected


@torch.inference_mode()
def test_compiled():
    """Attention breaks the graph, the rest of a layer is compiled; tokens are the same."""
    model, prompts = endless_tiny("llama"), [random_ids(70).tolist(), random_ids(62).tolist()]
    assert SparseCache(model.config).is_compileable is False
    with use_gossamer(model, SPARSE):
        expected = generated(model, prompts, 6)
        model.model.layers[1].compile(backend="eager", dynamic=True)
        assert generated(model, prompts, 6) == expected
    torch._dynamo.reset()


# ---- refused -------------------------------------------------------------------------------


def test_padding_on_the_right():
    """Before generation starts: the forward pass is never called."""
    model = endless_tiny("llama")
    inputs = padded([random_ids(9).tolist(), random_ids(4).tolist()], "right")
    model.forward = None
    with (
        use_gossamer(model),
        pytest.raises(ValueError, match=r"row 1 .* after tokens; .*padding_side = 'left'"),
    ):
        model.generate(**inputs, max_new_tokens=2)


def test_not_twice():
    model = endless_tiny("llama")
    with (
        use_gossamer(model),
        pytest.raises(ValueError, match=r"replaced already \(use_gossamer inside"),
        use_gossamer(model),
    ):
        pass


def test_other_caches():
    model, ids = endless_tiny("llama"), random_ids(9)[None]
    other = transformers.DynamicCache(config=model.config)
    with use_gossamer(model):
        with pytest.raises(ValueError, match="is a DynamicCache; must be a SparseCache, or left"):
            model.generate(ids, max_new_tokens=2, past_key_values=other)
        with pytest.raises(ValueError, match="is a DynamicCache; must be a SparseCache, or left"):
            model(ids, past_key_values=other)
        with pytest.raises(ValueError, match=r"pass past_key_values=.* and not use_cache=False"):
            model(ids, use_cache=False)
        with pytest.raises(ValueError, match="cache_implementation"):
            model.generate(ids, max_new_tokens=2, cache_implementation="static")


def test_types_and_devices():
    model = endless_tiny("llama").double()
    with (
        pytest.raises(ValueError, match=r"in float64; must be one of float32, .*model.to\(torch"),
        use_gossamer(model),
    ):
        pass
    model = endless_tiny("llama")
    model.lm_head.to("meta")
    with (
        pytest.raises(ValueError, match=r"is on cpu, meta; must be on one device: model.to\('cpu"),
        use_gossamer(model),
    ):
        pass
