"""Screening: errors of attention outputs, with the product's own blocks."""

import pytest
import torch

from gossamer.evaluation.frontier.candidates import Candidates, make_candidates
from gossamer.evaluation.frontier.screening import LAYERS, QUERIES, chosen_layers, screen
from gossamer.integrations.calibrating import calibrate
from gossamer.integrations.transformers import load_model
from gossamer.kv import Dense, KVConfig, Side, Sparse
from gossamer.models import load_decoder, open_model
from tests.models.tiny import causal_attend

TOKENS = 256


@pytest.fixture(scope="module")
def tiny(words):
    source = open_model(str(words))
    decoder = load_decoder(source, dtype=torch.float32, device="cpu", max_len=TOKENS)
    ids = torch.randint(6, 97, (TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    return decoder, ids


def both(*sides):
    return Candidates(tuple(sides), tuple(sides))


def test_errors_order_layouts_as_they_should(tiny):
    types = [Side(Dense(t, "row")) for t in ("int8", "int4", "int3", "int2")]
    keeps = [Side(Sparse(keep)) for keep in (31, 24, 16, 8)]
    with_sinks = screen(*tiny, both(Side(Dense()), *types, *keeps))
    assert list(with_sinks) == [0, 32]
    for found in (found for errors in with_sinks.values() for found in (errors.k, errors.v)):
        assert 0 <= found[Side(Dense())] < 1e-5
        for sides in (types, keeps):
            values = [found[side] for side in sides]
            assert values == sorted(values)
            assert 0 < values[0] < values[-1] < 2


def test_errors_are_those_of_attention(tiny):
    """Query by query, with what a sort keeps."""
    decoder, ids = tiny
    side = Side(Sparse(8))
    seen = {}

    def record(layer, q, k, v):
        seen[layer] = (q, k, v)
        return causal_attend(decoder.config.sliding)(layer, q, k, v)

    positions = torch.arange(TOKENS)
    with torch.inference_mode():
        decoder.forward(torch.tensor(ids), positions, record)
    expected = {(sink, name): [] for sink in (0, 32) for name in "kv"}
    for q, k, v in seen.values():
        top = [x * (x.abs() >= x.abs().topk(8, -1).values[..., -1:]) for x in (k, v)]
        top = [x.half().float() for x in top]
        stored = {"k": (top[0], v), "v": (k, top[1])}
        for (sink, name), found in expected.items():
            found.append(reference(q, (k, v), stored[name], KVConfig(sink=sink)))
    errors = screen(decoder, ids, both(side))
    for (sink, name), found in expected.items():
        mean = sum(found) / len(found)
        assert getattr(errors[sink], name)[side] == pytest.approx(mean, rel=1e-3)


def reference(q, dense, stored, config):
    """Query by query, head by head."""
    wrong = whole = 0.0
    queries = torch.linspace(64, TOKENS - 1, QUERIES).round().long().tolist()
    groups = q.shape[1] // dense[0].shape[1]
    for at in queries:
        near = config.sees_dense(torch.tensor(at), torch.arange(at + 1))
        for head in range(q.shape[1]):
            k, v = (x[: at + 1, head // groups].double() for x in dense)
            sk, sv = (x[: at + 1, head // groups].double() for x in stored)
            mixed = [torch.where(near[:, None], x, s) for x, s in ((k, sk), (v, sv))]
            row = q[at, head].double() / q.shape[-1] ** 0.5
            out, other = ((row @ a.T).softmax(-1) @ b for a, b in ((k, v), mixed))
            wrong += float((out - other).square().sum())
            whole += float(out.square().sum())
    return wrong / whole


def test_bases_and_ranks_of_a_calibration(tiny, calibration):
    candidates = make_candidates(32, half="fp16", calibrated=True)
    errors = screen(*tiny, candidates, calibration)[0]
    assert set(errors.k) == set(candidates.k)
    assert set(errors.v) == set(candidates.v)
    assert all(0 <= e < 10 for found in (errors.k, errors.v) for e in found.values())
    keep = Sparse(16)
    # Rows of a random model have little to gain, so they may lose a little.
    assert errors.v[Side(keep, "pca")] < 1.1 * errors.v[Side(keep)]
    assert errors.k[Side(keep, "none", "weighted")] < 1.1 * errors.k[Side(keep)]
    assert errors.k[Side(Dense(), "pca")] < 1e-5  # turning alone loses nothing


@pytest.fixture(scope="module")
def calibration(words, tiny):
    """Made of the tokens of `tiny`, by the product."""
    model, _ = load_model(words)
    return calibrate(model, torch.tensor(tiny[1]), context=TOKENS)


def test_all_layers_and_some():
    assert chosen_layers(3) == [0, 1, 2]
    assert chosen_layers(LAYERS) == list(range(LAYERS))
    found = chosen_layers(80)
    assert len(found) == LAYERS
    assert (found[0], found[-1]) == (0, 79)
    assert len(chosen_layers(17)) == LAYERS


def test_progress_and_too_few_tokens(tiny):
    decoder, ids = tiny
    layers = []
    screen(decoder, ids, both(Side(Dense())), on_layer=lambda: layers.append(1))
    assert len(layers) == decoder.config.layers
    with pytest.raises(ValueError, match="100 tokens to screen on; must be at least 128"):
        screen(decoder, ids[:100], both(Side(Dense())))
