"""Moments, bases and weights are what they say; a damaged calibration file is an error."""

import json
import sys
from dataclasses import asdict, replace

import pytest
import torch

from gossamer.kv.calibration import Calibration
from gossamer.kv.coded_basis import CodedBasis
from gossamer.kv.fingerprint import Fingerprint
from gossamer.kv.gradients import Gradients
from gossamer.kv.layouts import Side, Sparse
from gossamer.kv.manifest import Manifest
from gossamer.kv.moments import Bases, Moments, energy_in_top_half
from gossamer.kv.shape import KVShape

SHAPE = KVShape(layers=2, query_heads=6, kv_heads=2, head_dim=16)


def random_qkv(tokens=100, shape=SHAPE, dtype=torch.float32):
    """Per layer (q, k, v), with coordinates that are correlated and of different sizes."""

    def make(heads):
        mix = torch.randn(heads, shape.head_dim, shape.head_dim)
        return (torch.randn(heads, tokens, shape.head_dim) @ mix).to(dtype)

    heads = (shape.query_heads, shape.kv_heads, shape.kv_heads)
    return [tuple(make(count) for count in heads) for _ in range(shape.layers)]


def moments_of(data, chunk=None, shape=SHAPE):
    moments = Moments(shape)
    for layer, qkv in enumerate(data):
        tokens = qkv[0].shape[1]
        for start in range(0, tokens, chunk or tokens):
            moments.add(layer, *(x[:, start : start + (chunk or tokens)] for x in qkv))
    return moments


def random_gradients(shape=SHAPE, tokens=100):
    gradients = Gradients(shape)
    for layer in range(shape.layers):
        gradients.add(layer, torch.randn(shape.kv_heads, tokens, shape.head_dim))
    return {"gradients": gradients.mean()}


def random_weights(shape=SHAPE, hidden=40):
    return [torch.randn(shape.kv_heads * shape.head_dim, hidden) for _ in range(shape.layers)]


def manifest_of(weights, shape=SHAPE, name="tiny"):
    return Manifest(
        model=name,
        fingerprint=Fingerprint.of(shape, weights, random_weights(shape)),
        text_sha256="0" * 64,
        tokens=100,
        gossamer="0",
        torch="0",
        transformers="0",
    )


@pytest.fixture
def calibration():
    return Calibration.of(
        moments_of(random_qkv()).finish(random_gradients()), manifest_of(random_weights())
    )


def rewritten(calibration, path, *, drop=(), metadata=None, **tensors):
    """Save the calibration with something changed that `save` would not change."""
    torch_format = pytest.importorskip("safetensors.torch")
    calibration.save(path)
    data = {**torch_format.load_file(path), **tensors}
    manifest = {**asdict(calibration.manifest), **(metadata or {})}
    text = json.dumps({key: value for key, value in manifest.items() if key not in drop})
    kept = {name: tensor.contiguous() for name, tensor in data.items() if name not in drop}
    torch_format.save_file(kept, path, metadata={"gossamer": text})
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_bases_and_weights_against_a_direct_computation(dtype):
    data = random_qkv(dtype=dtype)
    bases = moments_of(data).finish(random_gradients())
    for layer, qkv in enumerate(data):
        q, k, v = (x.double() for x in qkv)
        for head in range(SHAPE.kv_heads):
            queries = q[3 * head : 3 * head + 3].reshape(-1, SHAPE.head_dim)
            for x, basis, energies in (
                (k[head], bases.k_basis[layer, head], bases.k_energies[layer, head]),
                (v[head], bases.v_basis[layer, head], bases.v_energies[layer, head]),
            ):
                turned = x @ basis.double()
                second = turned.T @ turned / len(x)
                scale = second.diagonal().max()
                torch.testing.assert_close(second.diagonal(), energies.double(), rtol=1e-5, atol=0)
                assert (second - second.diagonal().diag()).abs().max() < 1e-5 * scale
                assert (energies.diff() <= 0).all()
            rms = queries.square().mean(0).sqrt().float()
            torch.testing.assert_close(bases.ranks["k_weights"][layer, head], rms)
            in_basis = (queries @ bases.k_basis[layer, head].double()).square().mean(0).sqrt()
            torch.testing.assert_close(
                bases.ranks["k_basis_weights"][layer, head], in_basis.float()
            )


def test_gradients_count_directions_after_the_first_block():
    """Of 100 keys, 68; long gradients count as much as short ones, and zeros not at all."""
    raw = torch.randn(SHAPE.kv_heads, 100, SHAPE.head_dim, dtype=torch.float64)
    raw[:, 40] *= 1e6
    raw[1, 50:60] = 0
    gradients = Gradients(SHAPE)
    gradients.add(0, raw)
    gradients.add(1, raw[:, :90])
    gradients.add(1, torch.cat([torch.full((2, 32, 16), 9.0), raw[:, 90:]], 1))  # another window
    for head, others in ((0, 68), (1, 58)):
        directions = torch.nn.functional.normalize(raw[head, 32:], dim=-1)
        expected = directions.T @ directions / others
        torch.testing.assert_close(gradients.mean()[0, head], expected)
        torch.testing.assert_close(gradients.mean()[1, head], expected)
    mean = gradients.mean()
    bases = moments_of(random_qkv()).finish({"gradients": mean})
    torch.testing.assert_close(
        bases.ranks["k_gradients"][1, 1].double() ** 2, mean[1, 1].diagonal()
    )
    basis = bases.k_basis[1, 1].double()
    in_basis = (basis.T @ mean[1, 1] @ basis).diagonal()
    torch.testing.assert_close(bases.ranks["k_basis_gradients"][1, 1].double() ** 2, in_basis)


def test_gradients_that_are_missing_or_broken():
    gradients = Gradients(SHAPE)
    gradients.add(0, torch.randn(2, 100, 16))
    with pytest.raises(ValueError, match=r"no key has a gradient; windows must be .* 97 tok"):
        gradients.mean()
    gradients.add(1, torch.randn(2, 100, 16).index_fill_(1, torch.tensor(70), float("nan")))
    with pytest.raises(ValueError, match=r"gradients is not finite in layers \[1\]"):
        moments_of(random_qkv()).finish({"gradients": gradients.mean()})
    with pytest.raises(
        ValueError, match=r"measured \['weights'\]; must be \['gradients', 'weights'"
    ):
        moments_of(random_qkv()).finish({})


def test_rank_weights_follow_policy_and_basis(calibration):
    def weights(policy, basis):
        return calibration.rank_weights(Side(Sparse(8), basis, policy))

    assert weights("magnitude", "pca") is None
    assert weights("weighted", "none") is calibration.ranks["k_weights"]
    assert weights("weighted", "pca") is calibration.ranks["k_basis_weights"]
    assert weights("gradient", "none") is calibration.ranks["k_gradients"]
    assert weights("gradient", "pca") is calibration.ranks["k_basis_gradients"]


def test_moments_are_not_centred():
    """A constant offset is the first axis; centring would remove it."""
    shape = KVShape(1, 1, 1, 8)
    offset = torch.zeros(8).index_fill_(0, torch.tensor(5), 10.0)
    k = offset + 0.1 * torch.randn(1, 200, 8)
    basis = moments_of([(k, k, k)], shape=shape).finish(random_gradients(shape)).k_basis[0, 0]
    assert basis[5, 0] > 0.99


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_do_not_matter(chunk):
    data = random_qkv()
    whole, parts = moments_of(data), moments_of(data, chunk)
    for name in ("kk", "vv", "qq"):
        torch.testing.assert_close(
            getattr(parts, name), getattr(whole, name), rtol=1e-10, atol=1e-9
        )
    torch.testing.assert_close(
        *(each.finish(random_gradients()).ranks["k_weights"] for each in (parts, whole))
    )


def test_bases_are_orthogonal_and_have_fixed_signs():
    data = random_qkv()
    bases, again = (
        moments_of(data).finish(random_gradients()),
        moments_of(data).finish(random_gradients()),
    )
    identity = torch.eye(SHAPE.head_dim).expand(2, 2, -1, -1)
    for name in ("k_basis", "v_basis"):
        basis = getattr(bases, name)
        torch.testing.assert_close(basis.mT @ basis, identity, rtol=0, atol=1e-5)
        assert torch.equal(basis, getattr(again, name))
        largest = basis.gather(-2, basis.abs().argmax(-2, keepdim=True))
        assert (largest > 0).all()


def test_energy_in_the_top_half():
    assert energy_in_top_half(torch.tensor([[3.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])) == 0.75


def test_bad_chunks_are_errors():
    (q, k, v), _ = random_qkv()
    with pytest.raises(ValueError, match=r"layer is 2; must be 0 to 1"):
        Moments(SHAPE).add(2, q, k, v)
    with pytest.raises(ValueError, match=r"k has shape \[2, 99, 16\]; must be \[2, 100, 16\]"):
        Moments(SHAPE).add(0, q, k[:, 1:], v)
    with pytest.raises(ValueError, match=r"q has shape \[2, 100, 16\]; must be \[6, 100, 16\]"):
        Moments(SHAPE).add(0, k, k, v)


def test_moments_that_cannot_be_finished():
    data = random_qkv(tokens=20)
    moments = moments_of(data)
    moments.add(1, *data[1])
    with pytest.raises(ValueError, match=r"different numbers of tokens: \[20, 40\]"):
        moments.finish(random_gradients())
    with pytest.raises(ValueError, match="calibrated on 15 tokens; must be at least 16"):
        moments_of(random_qkv(tokens=15)).finish(random_gradients())
    data[1][1][0, 3, 4] = float("nan")
    with pytest.raises(ValueError, match=r"k is not finite in layers \[1\]"):
        moments_of(data).finish(random_gradients())


def test_save_and_load(calibration, tmp_path):
    pytest.importorskip("safetensors")
    path = tmp_path / "tiny.safetensors"
    path.write_bytes(b"an older file")
    calibration.save(path)
    loaded = Calibration.load(path)
    assert loaded.manifest == calibration.manifest
    for name, tensor in calibration.tensors.items():
        assert torch.equal(loaded.tensors[name], tensor)
    assert list(tmp_path.iterdir()) == [path]  # nothing temporary stays


def test_some_heads(calibration, tmp_path):
    """What a shard of the model needs, also of coded rows."""
    pytest.importorskip("safetensors")
    coded = {name: CodedBasis.blank(SHAPE) for name in ("k", "v")}
    whole, path = replace(calibration, coded=coded), tmp_path / "tiny.safetensors"
    whole.save(path)
    part = Calibration.load(path, heads=range(1, 2))
    assert part.manifest == whole.manifest
    assert set(part.tensors) == set(whole.tensors)
    for name, tensor in part.tensors.items():
        assert torch.equal(tensor, whole.tensors[name][:, 1:2]), name
    with pytest.raises(ValueError, match=r"is float32 \[2, 1, 16.*must be float32 \[2, 2, 16"):
        replace(part, heads=None)


def test_loading_for_another_model_names_the_file(calibration, tmp_path):
    path = rewritten(calibration, tmp_path / "x.safetensors")
    Calibration.load(path, calibration.manifest.fingerprint)
    other = Fingerprint.of(SHAPE, random_weights(), random_weights())
    with pytest.raises(ValueError, match=r"x\.safetensors: .* of tiny does not fit this model"):
        Calibration.load(path, other)


def test_a_failed_save_leaves_the_old_file(calibration, tmp_path, monkeypatch):
    pytest.importorskip("safetensors")
    path = tmp_path / "tiny.safetensors"
    path.write_bytes(b"an older file")

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="no space left"):
        calibration.save(path)
    assert path.read_bytes() == b"an older file"
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_are_no_calibrations(calibration, tmp_path):
    torch_format = pytest.importorskip("safetensors.torch")
    path = tmp_path / "x.safetensors"
    with pytest.raises(FileNotFoundError, match=r"x\.safetensors"):
        Calibration.load(path)
    path.write_bytes(b"not that")
    with pytest.raises(ValueError, match=r"x\.safetensors: not a safetensors file"):
        Calibration.load(path)
    torch_format.save_file({"k_basis": calibration.k_basis}, path)
    with pytest.raises(ValueError, match=r"x\.safetensors: not a calibration: it has no manifest"):
        Calibration.load(path)


DAMAGE = {
    "missing tensor": ({"drop": ["v_basis"]}, r"has tensors \['k_basis', 'k_basis_gradients', 'k_"),
    "unknown tensor": ({"more": torch.ones(1)}, r"has tensors .*'more'"),
    "wrong shape": ({"k_weights": torch.ones(2, 2, 8)}, r"k_weights is float32 \[2, 2, 8\]; must"),
    "wrong dtype": ({"k_weights": torch.ones(2, 2, 16).half()}, "k_weights is float16"),
    "negative weight": ({"k_weights": -torch.ones(2, 2, 16)}, "k_weights has negative or"),
    "not orthogonal": ({"v_basis": torch.ones(2, 2, 16, 16)}, "v_basis is not orthogonal"),
    "not a number": ({"k_basis": torch.full((2, 2, 16, 16), torch.nan)}, "k_basis is not ortho"),
    "unknown key": ({"metadata": {"colour": "red"}}, r"unknown keys \['colour'\] and lacks \[\]"),
    "missing key": ({"drop": ["text_sha256"]}, r"unknown keys \[\] and lacks \['text_sha256'\]"),
    "other format": (
        {"metadata": {"format": 2}},
        "format is 2; this version reads 3 and 4: make it ag",
    ),
    "wrong type": ({"metadata": {"tokens": "many"}}, "tokens is 'many'; must be int"),
    "no fingerprint": ({"metadata": {"fingerprint": {}}}, "fingerprint is damaged: 'shape'"),
}


@pytest.mark.parametrize(("change", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_files_are_errors_that_name_file_and_problem(
    calibration, tmp_path, change, message
):
    path = rewritten(calibration, tmp_path / "tiny.safetensors", **change)
    with pytest.raises(ValueError, match=r"tiny\.safetensors: .*" + message):
        Calibration.load(path)


def test_without_safetensors_the_message_says_what_to_install(calibration, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(
        ImportError, match=r"safetensors is needed.*pip install 'gossamer\[models\]'"
    ):
        calibration.save(tmp_path / "x")


def test_a_calibration_of_another_model_names_both():
    weights = random_weights()
    bases = moments_of(random_qkv()).finish(random_gradients())
    calibration = Calibration.of(bases, manifest_of(weights, name="first"))
    values = random_weights()  # other ones, as after folding
    calibration.check(Fingerprint.of(SHAPE, weights, values), "again")
    with pytest.raises(ValueError, match="of first does not fit second: they have other K proj"):
        calibration.check(Fingerprint.of(SHAPE, random_weights(), values), "second")
    larger = replace(SHAPE, layers=3)
    other = Fingerprint.of(larger, random_weights(larger), random_weights(larger))
    with pytest.raises(ValueError, match=r"of first .* second: one has 2 layers, .*other 3 layers"):
        calibration.check(other, "second")


def test_bases_are_what_a_calibration_keeps(calibration):
    assert isinstance(moments_of(random_qkv()).finish(random_gradients()), Bases)
    with pytest.raises(ValueError, match="v_basis is float32"):
        replace(calibration, v_basis=calibration.v_basis[:1])
