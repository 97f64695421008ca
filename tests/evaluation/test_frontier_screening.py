"""Screening: errors of attention outputs, with the product's own blocks."""

from dataclasses import replace

import pytest
import torch

from gossamer.evaluation.frontier.candidates import Candidates, make_candidates
from gossamer.evaluation.frontier.command import has_codes
from gossamer.evaluation.frontier.screening import LAYERS, chosen_layers, screen
from gossamer.evaluation.frontier.view import QUERIES
from gossamer.integrations.calibrating import calibrate
from gossamer.integrations.transformers import load_model
from gossamer.kv import BlockStore, Dense, KVConfig, Side, Sparse
from gossamer.kv.layouts import Coded
from gossamer.kv.policies import Ranking
from gossamer.models import load_decoder, on_rotated, open_model
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
    expected = {(sink, name): [] for sink in (0, 32) for name in "kv"}
    for q, k, v in recorded(decoder, ids).values():
        top = [x * (x.abs() >= x.abs().topk(8, -1).values[..., -1:]) for x in (k, v)]
        top = [x.half().float() for x in top]
        stored = {"k": (top[0], v), "v": (k, top[1])}
        for (sink, name), found in expected.items():
            found.append(reference(q, (k, v), stored[name], KVConfig(sink=sink)))
    errors = screen(decoder, ids, both(side))
    for (sink, name), found in expected.items():
        mean = sum(found) / len(found)
        assert getattr(errors[sink], name)[side] == pytest.approx(mean, rel=1e-3)


def recorded(decoder, ids):
    """q, k and v of every layer."""
    seen = {}

    def record(layer, q, k, v):
        seen[layer] = (q, k, v)
        return causal_attend(decoder.config.sliding)(layer, q, k, v)

    with torch.inference_mode():
        decoder.forward(torch.tensor(ids), torch.arange(TOKENS), on_rotated(record))
    return seen


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


def test_coded_rows_as_the_engine_stores_them(tiny, calibration):
    """Query by query, with rows that are turned back: in a basis that is far from orthogonal, and
    less a mean that far keys must not lack where near ones have it."""
    decoder, ids = tiny
    shift = torch.linspace(-2, 2, 32).expand_as(calibration.coded["k"].mean).contiguous()
    coded = {**calibration.coded, "k": replace(calibration.coded["k"], mean=shift)}
    known = replace(calibration, coded=coded)
    side = Side(Coded("8x8+4x8+2x8+0x8", "row"))
    expected = {(sink, name): [] for sink in (0, 32) for name in "kv"}
    for layer, (q, k, v) in recorded(decoder, ids).items():
        back = {name: turned_back(known, name, side, layer, x) for name, x in (("k", k), ("v", v))}
        stored = {"k": (back["k"], v), "v": (k, back["v"])}
        for (sink, name), found in expected.items():
            found.append(reference(q, (k, v), stored[name], KVConfig(sink=sink)))
    errors = screen(decoder, ids, both(side), known)
    for (sink, name), found in expected.items():
        mean = sum(found) / len(found)
        assert getattr(errors[sink], name)[side] == pytest.approx(mean, rel=2e-3)


def turned_back(calibration, name, side, layer, x):
    """Rows of one layer through blocks of codes, packed with what they are worth; float64."""
    basis, worth = calibration.basis(name, side), calibration.weights(name, side)
    matrix = basis.matrix[layer].double()
    mean = torch.zeros(()) if basis.mean is None else basis.mean[layer].double()
    rows = torch.einsum("thd,hde->the", x.double() - mean, matrix).float()
    store = BlockStore.allocate(side, TOKENS // 32, *rows.shape[1:])
    store.write(rows, torch.arange(TOKENS), Ranking(worth[layer]))
    stored = store.read(torch.arange(TOKENS), torch.float32).double()
    return torch.einsum("the,hed->thd", stored, matrix.inverse()) + mean


def test_a_calibration_that_knows_nothing_of_codes(tiny, calibration):
    assert has_codes(calibration)
    older = replace(calibration, coded={})
    assert not has_codes(older)
    assert not has_codes(None)
    assert screen(*tiny, both(Side(Dense(), "pca")), older)[0].k[Side(Dense(), "pca")] < 1e-5
    with pytest.raises(ValueError, match="no steps of coded rows"):
        screen(*tiny, both(Side(Coded("4x32", "row"))), older)


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
