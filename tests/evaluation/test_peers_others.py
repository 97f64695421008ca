"""Specs of peers, and those that are other packages: QuantizedCache and kvpress, real or faked."""

import contextlib
import importlib
import sys
import types

import pytest
import torch

from gossamer.evaluation.peers import DEFAULT_SPECS, PEERS, available, parse_peer, quantized_cache
from tests.evaluation.peers import Numbers, model_of_32
from tests.models.tiny import random_ids

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("zip:4", "peer is 'zip'; must be one of exact, kivi, mustafar, streaming, snapkv, "),
        ("kivi", "kivi stands alone; must be followed by a number, as in :4"),
        ("kivi:", "'' is not a number"),
        ("kivi:4.5", "kivi is followed by 4.5; must be an integer"),
        ("kivi:7", "bits is 7; must be one of 2, 3, 4, 8, 16"),
        ("kivi:4,window", "'window' is not option=value"),
        ("kivi:4,window=a", "option window is 'a'; must be an integer"),
        ("kivi:4,window=32,window=64", "option 'window' is there twice; must be there once"),
        ("kivi:4,sinks=4", "option is 'sinks'; must be one of window"),
        ("exact:4", "exact is followed by 4; must stand alone"),
        ("exact,window=4", "option 'window'; exact has none"),
        ("snapkv:2", "share is 2; must be above 0 and at most 1"),
        ("quantized:8", "bits is 8; must be one of 2, 4 for quanto"),
        ("quantized:4,backend=x", "backend is 'x'; must be one of quanto, hqq"),
        ("kvpress-think:1", "pruned is 1; must be >= 0 and < 1"),
        ("kvpress-snapkv:0", "share is 0; must be above 0 and at most 1"),
    ],
)
def test_bad_specs(spec, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        parse_peer(spec)
    assert str(caught.value).startswith(f"peer {spec!r}: {message}")


def test_specs_are_checked_before_there_is_a_model():
    for spec in (*DEFAULT_SPECS, "snapkv:0.25,window=64,kernel=7", "kvpress-expected:0.5"):
        assert callable(parse_peer(spec))


def test_available_says_why_not():
    reasons = available()
    assert list(reasons) == list(PEERS)
    assert not any(reasons[name] for name in ("exact", "kivi", "snapkv", "think"))
    for name, modules in (
        ("quantized", ("optimum.quanto", "hqq")),
        ("kvpress-think", ("kvpress",)),
    ):
        if all(not _importable(module) for module in modules):
            assert "cannot be imported" in reasons[name]
            assert "pip install" in reasons[name]
            with pytest.raises(ImportError, match=r"unavailable: .* cannot be imported"):
                parse_peer(f"{name}:{4 if name == 'quantized' else 0.5}")(model_of_32(), None)


def _importable(module):
    try:
        importlib.import_module(module)
    except Exception:
        return False
    return True


class FakeQuantizedCache(transformers.DynamicCache):
    """Exact, and remembers how it was asked for."""

    asked: list[dict] = []  # noqa: RUF012

    def __init__(self, **settings):
        super().__init__()
        self.asked.append(settings)


def test_quantized_cache_reads_blocks(monkeypatch):
    monkeypatch.setattr(quantized_cache, "why_not", lambda backend: "")
    fake = types.SimpleNamespace(QuantizedCache=FakeQuantizedCache)
    monkeypatch.setattr(quantized_cache, "import_extra", lambda name: fake)
    model, ids = model_of_32(), random_ids(70).tolist()
    peer = parse_peer("quantized:2,backend=hqq")(model, Numbers())
    plain = parse_peer("exact")(model, Numbers())
    assert peer.loglikelihood([ids])[0] == pytest.approx(plain.loglikelihood([ids])[0], abs=1e-4)
    assert peer.generate([ids], [5]) == plain.generate([ids], [5])
    asked = FakeQuantizedCache.asked[-1]
    assert (asked["nbits"], asked["backend"], asked["axis_key"]) == (2, "hqq", 1)
    # 3 layers, K and V, 64 entries of 2 bits, and one scale and one zero point for 64 of them.
    assert peer.bytes_per_token == 3 * 2 * (64 / 4 + 4)
    assert peer.share == 120 / 768
    with pytest.raises(ValueError, match="a token has 32 entries; must be a multiple of 64"):
        parse_peer("quantized:4")(model_of_32(num_key_value_heads=1), None)


class FakePress:
    """Leaves the last part of the prompt in the cache."""

    def __init__(self, compression_ratio=0.0, key_channel_compression_ratio=0.0):
        self.ratio = compression_ratio

    @contextlib.contextmanager
    def __call__(self, model):
        def shrink(module, args, kwargs, output):
            layer = kwargs["past_key_values"].layers[module.layer_idx]
            positions = kwargs["cache_position"]
            assert len(positions) == kwargs["hidden_states"].shape[1]
            gone = int(self.ratio * len(positions))
            layer.keys, layer.values = layer.keys[:, :, gone:], layer.values[:, :, gone:]

        hooks = [
            layer.self_attn.register_forward_hook(shrink, with_kwargs=True)
            for layer in model.model.layers
        ]
        yield
        for hook in hooks:
            hook.remove()


@pytest.fixture
def fake_kvpress(monkeypatch):
    module = types.ModuleType("kvpress")
    for name in ("SnapKVPress", "StreamingLLMPress", "ExpectedAttentionPress", "ThinKPress"):
        setattr(module, name, FakePress)
    monkeypatch.setitem(sys.modules, "kvpress", module)
    return module


def test_presses_shrink_the_prompt_only(fake_kvpress):
    """What FakePress does is StreamingLLM without sinks, at the prompt's end."""
    model, ids = model_of_32(), random_ids(60)
    peer = parse_peer("kvpress-streaming:0.5")(model, Numbers())
    found = torch.tensor(peer.loglikelihood([ids.tolist()])[0])
    plain = torch.tensor(parse_peer("exact")(model, None).loglikelihood([ids.tolist()])[0])
    assert peer.first_scored(60) == 31
    torch.testing.assert_close(found[:30], plain[:30], rtol=1e-4, atol=1e-4)

    mask = torch.ones(60, 60, dtype=torch.bool).tril()
    mask[30:, :15] = False
    with torch.no_grad():
        logits = model(ids[None], attention_mask=mask[None, None], use_cache=False).logits[0, :-1]
    expected = logits.log_softmax(-1).gather(1, ids[1:, None]).flatten()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert len(peer.generate([ids.tolist()], [4])[0].split()) == 4
    assert (peer.bytes_per_token, peer.share) == (384, 0.5)


def test_presses_that_shrink_nothing(fake_kvpress):
    model, ids = model_of_32(), random_ids(50).tolist()
    plain = parse_peer("exact")(model, Numbers())
    for spec in ("kvpress-snapkv:1", "kvpress-think:0", "kvpress-expected:1"):
        peer = parse_peer(spec)(model, Numbers())
        assert peer.loglikelihood([ids])[0] == pytest.approx(
            plain.loglikelihood([ids])[0], abs=1e-4
        )
        assert peer.generate([ids], [5]) == plain.generate([ids], [5])
        assert peer.share == 1
    # ThinK: 24 of 32 channels of K, all of V.
    assert parse_peer("kvpress-think:0.25")(model, None).share == (24 + 32) / 64


def test_an_old_kvpress(fake_kvpress):
    del fake_kvpress.ThinKPress
    assert available()["kvpress-snapkv"] == "this kvpress has no ThinKPress"
    with pytest.raises(ImportError, match="unavailable: this kvpress has no ThinKPress"):
        parse_peer("kvpress-think:0.5")(model_of_32(), None)


@pytest.mark.parametrize("spec", ["quantized:4", "quantized:4,backend=hqq", "kvpress-snapkv:0.9"])
def test_the_real_packages_where_they_are_installed(spec):
    model, ids = model_of_32(), random_ids(200).tolist()
    try:
        peer = parse_peer(spec)(model, Numbers())
    except ImportError as error:
        pytest.skip(str(error))
    plain = parse_peer("exact")(model, Numbers())
    change = torch.tensor(peer.loglikelihood([ids])) - torch.tensor(plain.loglikelihood([ids]))
    assert 0 < change.abs().mean() < 0.3
    assert len(peer.generate([ids], [5])[0].split()) == 5
