"""A fingerprint tells models apart and survives what happens to one model."""

from dataclasses import asdict, replace

import pytest
import torch

from gossamer.kv.fingerprint import Fingerprint
from gossamer.kv.shape import KVShape

SHAPE = KVShape(layers=2, query_heads=6, kv_heads=2, head_dim=16)


def random_weights():
    return [torch.randn(32, 40) for _ in range(2)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rounding_does_not_matter(dtype):
    weights = random_weights()
    first = Fingerprint.of(SHAPE, weights, weights[::-1])
    rounded = [w.to(dtype) for w in weights]
    second = Fingerprint.of(SHAPE, rounded, rounded[::-1])
    assert first != second
    assert first.difference(second) is None
    assert first.first_other_v(second) is None


def test_another_model_of_the_same_shape_differs():
    weights = random_weights()
    first = Fingerprint.of(SHAPE, weights, weights)
    other = Fingerprint.of(SHAPE, random_weights(), weights)
    assert "first in layer 0" in first.difference(other)
    assert first.first_other_v(other) is None
    one_layer = Fingerprint.of(SHAPE, [weights[0], torch.randn(32, 40)], weights)
    assert "first in layer 1" in first.difference(one_layer)
    swapped = Fingerprint.of(SHAPE, [weights[0], weights[1].flip(0)], weights)
    assert "first in layer 1" in first.difference(swapped)


def test_other_values_are_no_other_model():
    weights = random_weights()
    first = Fingerprint.of(SHAPE, weights, weights)
    turn = torch.linalg.qr(torch.randn(16, 16)).Q
    turned = (turn @ weights[1].reshape(2, 16, 40)).reshape(32, 40)
    for values, layer in (([weights[0], turned], 1), (random_weights(), 0)):
        other = Fingerprint.of(SHAPE, weights, values)
        assert first.difference(other) is None
        assert first.first_other_v(other) == layer


def test_another_shape_differs():
    first = Fingerprint.of(SHAPE, random_weights(), random_weights())
    other = replace(first, shape=replace(SHAPE, query_heads=2))
    words = first.difference(other)
    assert "2 layers, 6 query and 2 KV heads of 16" in words
    assert "2 layers, 2 query and 2 KV heads of 16" in words


def test_it_is_the_same_in_every_version():
    """Stored in files, so it must never change: values computed by the first version."""
    weight = torch.arange(32 * 40, dtype=torch.float32).reshape(32, 40).sin()
    first = Fingerprint.of(KVShape(1, 2, 2, 16), [weight], [weight])
    for (sketch,) in (first.k_sketches, first.v_sketches):
        assert sketch == pytest.approx((-0.704492, -0.010742, -0.410348, -0.215087), abs=1e-4)


def test_round_trip_through_a_dictionary():
    first = Fingerprint.of(SHAPE, random_weights(), random_weights())
    assert Fingerprint.from_dict(asdict(first)) == first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k_sketches": [[0.0] * 4]}, "1 k_sketches; must be 2"),
        ({"v_sketches": [[0.0] * 4]}, "1 v_sketches; must be 2"),
        ({"k_sketches": [[0.0] * 4, [0.0] * 3]}, "k_sketch 1 is .* must be 4 finite numbers"),
        ({"v_sketches": [[0.0] * 4, [float("nan")] * 4]}, "v_sketch 1 is .* must be 4 finite"),
        ({"k_sketches": 3}, "not iterable"),
        ({"shape": [1, 2]}, "unexpected"),
        ({"shape": {"layers": 2}}, "missing 3 required"),
        ({"colour": "red"}, "unexpected .*'colour'"),
    ],
)
def test_damaged_ones_are_errors(change, message):
    data = {**asdict(Fingerprint.of(SHAPE, random_weights(), random_weights())), **change}
    with pytest.raises(ValueError, match=r"fingerprint is damaged: .*" + message):
        Fingerprint.from_dict(data)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_weights_that_are_not_finite_are_errors(value):
    weight = torch.full((32, 40), value)
    with pytest.raises(ValueError, match=r"k_sketch 0 is .* finite"):
        Fingerprint.of(SHAPE, [weight, weight], random_weights())
    with pytest.raises(ValueError, match=r"v_sketch 0 is .* finite"):
        Fingerprint.of(SHAPE, random_weights(), [weight, weight])


def test_one_without_values_is_damaged():
    data = asdict(Fingerprint.of(SHAPE, random_weights(), random_weights()))
    del data["v_sketches"]
    with pytest.raises(ValueError, match="fingerprint is damaged: 'v_sketches'"):
        Fingerprint.from_dict(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layers is 0; must be an integer >= 1"),
        ({"head_dim": 16.0}, "head_dim is 16.0; must be an integer"),
        ({"query_heads": 5}, "query_heads is 5; must be a multiple of 2 KV heads"),
    ],
)
def test_impossible_shapes(change, message):
    with pytest.raises(ValueError, match=message):
        replace(SHAPE, **change)
