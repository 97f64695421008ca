"""transformers' models: loading, replacing attention, calibrating."""

import subprocess
import sys

import pytest
import torch

from gossamer.integrations.calibrating import (
    _attention_with_offsets,
    _gradients_at,
    calibrate,
    measure_gradients,
    measure_moments,
)
from gossamer.integrations.transformers import (
    attention_function,
    causal_attention,
    fingerprint,
    kv_shape,
    load_model,
)
from gossamer.integrations.windows import TURNS, Window, turned, window_starts, windows_of
from gossamer.kv.config import KVConfig
from gossamer.kv.folding import fold_v_basis
from gossamer.kv.shape import KVShape
from tests.integrations import FAMILIES, tiny_model, write_gguf

transformers = pytest.importorskip("transformers")


def random_ids(*shape):
    return torch.randint(0, 97, shape)


def zeros(layer, query, key, value, scaling):
    return torch.zeros_like(query)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_causal_attention_is_the_models_own(family):
    model, ids = tiny_model(family), random_ids(2, 40)
    shape, seen = kv_shape(model), []

    def watch(layer, query, key, value, scaling):
        assert query.shape == (2, shape.query_heads, 40, shape.head_dim)
        assert key.shape == value.shape == (2, shape.kv_heads, 40, shape.head_dim)
        assert scaling == shape.head_dim**-0.5
        seen.append(layer)
        return causal_attention(layer, query, key, value, scaling)

    expected = model(ids, use_cache=False).logits
    with attention_function(model, watch):
        found = model(ids, use_cache=False).logits
    assert seen == [0, 1, 2]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert fingerprint(model).shape == shape


@torch.no_grad()
def test_keys_are_after_rope():
    """Against RoPE written out: rotation by position of the pairs (i, i + D/2)."""
    model, ids = tiny_model("llama"), random_ids(1, 8)
    seen = {}

    def watch(layer, query, key, value, scaling):
        seen[layer] = key
        return causal_attention(layer, query, key, value, scaling)

    with attention_function(model, watch):
        model(ids)
    block = model.model.layers[0]
    k = block.self_attn.k_proj(block.input_layernorm(model.model.embed_tokens(ids)))
    k = k.view(1, 8, 2, 8).transpose(1, 2)
    angles = torch.arange(8)[:, None] * 10000.0 ** (-torch.arange(4) / 4)
    a, b = k[..., :4], k[..., 4:]
    turned = (a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin())
    torch.testing.assert_close(seen[0], torch.cat(turned, -1))


@torch.no_grad()
def test_nesting_and_exceptions_restore_what_was_there():
    model, ids = tiny_model("qwen2"), random_ids(1, 12)
    model.set_attn_implementation("eager")
    plain = model(ids).logits
    with attention_function(model, zeros):
        outer = model(ids).logits
        with attention_function(model, causal_attention):
            torch.testing.assert_close(model(ids, use_cache=False).logits, plain)
        assert torch.equal(model(ids).logits, outer)
        with pytest.raises(KeyError), attention_function(model, causal_attention):
            raise KeyError
        assert torch.equal(model(ids).logits, outer)
    assert not torch.allclose(outer, plain)
    assert model.config._attn_implementation == "eager"
    assert torch.equal(model(ids).logits, plain)


@torch.no_grad()
def test_two_models_do_not_meet():
    first, second, ids = tiny_model("llama"), tiny_model("llama"), random_ids(1, 12)
    plain = second(ids).logits
    with attention_function(first, zeros):
        assert torch.equal(second(ids).logits, plain)
        with attention_function(second, causal_attention):
            torch.testing.assert_close(second(ids).logits, plain)
    sibling = type(first)(first.config)
    message = "shares this model's config"
    with attention_function(first, zeros), pytest.raises(ValueError, match=message):
        sibling(ids)


@torch.no_grad()
def test_what_a_function_would_not_notice_is_refused():
    model, ids = tiny_model("mistral", sliding_window=8), random_ids(1, 9)
    mask = torch.ones(1, 8, dtype=torch.long)
    with attention_function(model, causal_attention):
        model(ids[:, :8], attention_mask=mask)
        with pytest.raises(ValueError, match="9 tokens, and the model's sliding window is 8"):
            model(ids)
        mask[0, 0] = 0
        with pytest.raises(ValueError, match="the batch has padding"):
            model(ids[:, :8], attention_mask=mask)
        with pytest.raises(ValueError, match="takes no attention mask"):
            model(ids[:, :8], attention_mask=torch.zeros(1, 1, 8, 8))
        cache = model(ids[:, :4], use_cache=True).past_key_values
        with pytest.raises(ValueError, match="1 queries and 5 keys; must be as many"):
            model(ids[:, 4:5], past_key_values=cache)
    message = r"returned \[1\]; must be \[1, 6, 4, 8\]"
    constant = attention_function(model, lambda *_: torch.zeros(1))
    with constant, pytest.raises(ValueError, match=message):
        model(ids[:, :4])


def test_models_built_otherwise_are_refused():
    sizes = {"vocab_size": 97, "n_embd": 16, "n_layer": 1, "n_head": 2}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    with (
        pytest.raises(ValueError, match="GPT2LMHeadModel has no module called self_attn"),
        attention_function(model, zeros),
    ):
        pass


def test_shapes_from_configs():
    assert kv_shape(tiny_model("llama")) == KVShape(3, 6, 2, 8)
    assert kv_shape(tiny_model("qwen3")) == KVShape(3, 6, 2, 16)


@pytest.mark.parametrize(
    ("count", "context", "longest", "starts"),
    [
        (1, 512, 8192, [0]),
        (3, 160, 160, [0, 0, 0]),  # all that the model has
        (2, 1024, 2048, [0, 1024]),
        (5, 1024, 8192, [0, 698, 1872, 3847, 7168]),
        (5, 1024, 16384, [0, 1024, 3072, 7168, 15360]),
    ],
)
def test_windows_are_dense_where_most_texts_are(count, context, longest, starts):
    assert window_starts(count, context, longest) == starts


@torch.no_grad()
def keys_of(model, window):
    """Of each layer, [Hk, T, D]."""
    found = {}

    def watch(layer, query, key, value, scaling):
        found[layer] = key[0]
        return causal_attention(layer, query, key, value, scaling)

    with attention_function(model, watch):
        model(**window.inputs, use_cache=False)
    return found


YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}


@pytest.mark.parametrize(
    ("family", "settings"),
    [("llama", {}), ("mistral", {}), ("qwen2", {}), ("qwen3", {"rope_parameters": YARN})],
)
def test_turned_keys_are_those_of_other_positions(family, settings):
    model, ids = tiny_model(family, **settings), torch.randint(0, 97, (40,))
    keys = keys_of(model, Window(ids, 100))
    for found in keys.values():
        assert torch.equal(turned(model, found, [0])[:, 0], found)
    for start in (3, 3000):
        for layer, expected in keys_of(model, Window(ids, start)).items():
            copies = turned(model, keys[layer], [5, start - 100])
            torch.testing.assert_close(copies[:, 1], expected, rtol=1e-3, atol=1e-3)
            assert not torch.allclose(copies[:, 0], expected, rtol=0.1, atol=0.1)


def test_keys_of_a_window_count_at_positions_near_and_far():
    windows = windows_of(tiny_model("llama"), torch.zeros(400, dtype=torch.long), 100)
    for window in windows:
        assert len(window.shifts) == TURNS
        assert window.start + min(window.shifts) < 200
        assert window.start + max(window.shifts) > 1500
    alone = windows_of(tiny_model("llama"), torch.zeros(4096, dtype=torch.long), 4096)
    assert [(w.start, w.shifts) for w in alone] == [(0, (0,))]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@torch.no_grad()
def test_moments_of_a_text(family):
    """Windows are independent: the same as the sums over each one alone, the last one shorter. They
    are spread over the model's positions, 4096.
    """
    model, ids = tiny_model(family), random_ids(220)
    shape, windows = kv_shape(model), []
    moments = measure_moments(model, ids.tolist(), context=100, on_window=windows.append)
    assert windows == [100, 100, 20]
    assert moments.tokens == [220] * 3
    expected = torch.zeros_like(moments.kk)

    def watch(layer, query, key, value, scaling):
        expected[layer] += key[0].double().mT @ key[0].double()
        return causal_attention(layer, query, key, value, scaling)

    with attention_function(model, watch):
        for start, position in ((0, 0), (100, 540), (200, 3996)):
            window = ids[None, start : start + 100]
            positions = torch.arange(window.shape[1])[None] + position
            model(window, position_ids=positions, use_cache=False)
    torch.testing.assert_close(moments.kk, expected)
    calibration = calibrate(model, ids, context=100, text_sha256="abc")
    gradients = measure_gradients(model, ids, context=100)
    bases = moments.finish({"gradients": gradients.mean()})
    assert torch.equal(calibration.k_basis, bases.k_basis)
    assert torch.equal(calibration.ranks["k_gradients"], bases.ranks["k_gradients"])
    manifest = calibration.manifest
    assert (manifest.shape, manifest.tokens, manifest.text_sha256) == (shape, 220, "abc")
    assert manifest.transformers == transformers.__version__
    assert model.config._attn_implementation == "sdpa"
    calibration.check(fingerprint(model))


@pytest.mark.parametrize(
    ("tokens", "context", "message"),
    [
        (100, 0, "context is 0; must be 1 to 4096"),
        (100, 4097, "context is 4097; must be 1 to 4096"),
        (7, 256, "7 tokens; must be at least 8, the head_dim"),
        (96, 256, "context is 256 and there are 96 tokens; both must be at least 97"),
        (200, 96, "context is 96 and there are 200 tokens; both must be at least 97"),
    ],
)
def test_calibration_with_bad_numbers(tokens, context, message):
    with pytest.raises(ValueError, match=message):
        calibrate(tiny_model("llama"), random_ids(tokens), context=context)


def test_paths_that_hold_no_model(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere: there is no such model directory"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="cannot be loaded"):
        load_model(tmp_path)
    file = tmp_path / "model.bin"
    file.touch()
    with pytest.raises(ValueError, match=r"model\.bin: must be a directory or a \.gguf file"):
        load_model(file)


@pytest.mark.parametrize("device", ["abacus", "cuda:99"])
def test_devices_that_are_not_there(tmp_path, device):
    with pytest.raises(ValueError, match=f"device '{device}' cannot be used"):
        load_model(tmp_path, device=device)


def test_without_the_extra_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    message = r"transformers is needed here.*pip install 'gossamer\[models\]'"
    with pytest.raises(ImportError, match=message):
        load_model(tmp_path)
    with pytest.raises(ImportError, match=message), attention_function(None, zeros):
        pass


@torch.no_grad()
def test_a_gguf_file(tmp_path):
    pytest.importorskip("accelerate")
    model, ids = tiny_model("llama"), random_ids(1, 20)
    path = tmp_path / "tiny.gguf"
    write_gguf(model, path)
    loaded, tokenizer = load_model(path)
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=1e-5, atol=1e-5)
    assert tokenizer("$#")["input_ids"] == [3, 2]
    assert calibrate(loaded, ids.repeat(1, 5)).manifest.model == "tiny.gguf"
    assert fingerprint(loaded).difference(fingerprint(model)) is None
    fold_v_basis(loaded, calibrate(model, ids.repeat(1, 5)))


def test_damaged_gguf_files_and_missing_readers(tmp_path, monkeypatch):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF and nothing else")
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(
        ImportError, match=r"accelerate is needed.*pip install 'gossamer\[models\]'"
    ):
        load_model(path)
    monkeypatch.undo()
    pytest.importorskip("accelerate")
    with pytest.raises(ValueError, match=r"broken\.gguf: cannot be loaded"):
        load_model(path)


def test_importing_gossamer_does_not_import_the_extra():
    code = "import gossamer.cli.main, gossamer.kv.folding, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert not {"transformers", "safetensors", "gguf"} & set(run.stdout.split())


def test_gradients_against_finite_differences():
    """Moving far keys and values moves the loss by the gradient; parameters keep their settings."""
    model, ids = tiny_model("llama").double(), random_ids(130)
    window = Window(ids, 700)
    found = list(_gradients_at(model, window, kv_shape(model)))
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    positions = torch.arange(130)
    near = KVConfig().sees_dense(positions[:, None], positions)
    future = positions > positions[:, None]
    still = torch.zeros(2, 130, 8, dtype=torch.float64)

    @torch.no_grad()
    def loss(moved, side, by):
        def attend(layer, query, key, value, scaling):
            offsets = [by if (layer, i) == (moved, side) else still for i in range(2)]
            return _attention_with_offsets(query, key, value, *offsets, scaling, near, future)

        with attention_function(model, attend):
            logits = model(**window.inputs, use_cache=False).logits[0, :-1]
        return torch.nn.functional.cross_entropy(logits, ids[1:], reduction="sum")

    for layer, (k, v, *gradients) in enumerate(found):
        assert k.shape == v.shape == still.shape
        for side, gradient in enumerate(gradients):
            assert torch.all(gradient[:, 96:] == 0), "no query sees these compressed"
            direction = torch.randn_like(still)
            ends = (loss(layer, side, 1e-4 * direction), loss(layer, side, -1e-4 * direction))
            expected = (gradient * direction).sum()
            # Random slopes are about as large as the gradient; norms inside are in float32.
            assert abs((ends[0] - ends[1]) / 2e-4 - expected) < 0.02 * gradient.norm()
