"""Weights in few bits give the logits of what they mean."""

import logging
import re
import shutil

import pytest
import torch

from gossamer.kv.bases import Basis
from gossamer.models import Shard, load_decoder, open_model
from gossamer.models.matrix import GgufMatrix, Int4Matrix, Int8Matrix, PackedMatrix
from gossamer.models.packed import Int4Rows
from gossamer.models.precision import Precision
from gossamer.models.random import RandomSource
from gossamer.models.source import WHOLE
from gossamer.ops import quantize_fp8, quantize_int8
from tests.models.gguf_files import write_gguf
from tests.models.quantized import CHECKPOINTS, save
from tests.models.tiny import assert_near, logits_of, random_ids, tiny_directory, tiny_model

safetensors_torch = pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.usefixtures("one_thread")


def load(source, weights, dtype=torch.float32, **more):
    return load_decoder(source, dtype=dtype, device="cpu", max_len=64, weights=weights, **more)


def matrices_of(decoder):
    layers = decoder.weights.layers
    return [m for x in layers for m in (x.qkv, x.o, x.gate_up, x.down)]


# ---- GGUF files: computed from their own bytes ---------------------------------------------------


@pytest.mark.parametrize("quantization", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
@pytest.mark.parametrize(("family", "arch"), [("llama-bias", "llama"), ("qwen3", "qwen3")])
def test_a_gguf_file_as_it_is(family, arch, quantization, tmp_path):
    write_gguf(tiny_model(family), tmp_path / "x.gguf", arch, quantization)
    source = open_model(tmp_path / "x.gguf")
    packed, floats = load(source, "auto"), load(source, "float")
    assert all(isinstance(m, GgufMatrix) for m in [*matrices_of(packed), packed.weights.head])
    assert set(packed.weights.layers[0].down.types) == {quantization.lower()}
    for tokens, tolerance in ((3, 3e-4), (40, 1e-5)):  # our kernel, of x in 16 bits, and torch's
        ids = random_ids(tokens)
        assert_near(logits_of(packed, ids), logits_of(floats, ids), tolerance)


def test_a_gguf_file_of_numbers_is_loaded_as_numbers(tmp_path):
    write_gguf(tiny_model("llama"), tmp_path / "x.gguf", "llama", "F16")
    decoder = load(open_model(tmp_path / "x.gguf"), "auto")
    assert not any(isinstance(m, PackedMatrix) for m in matrices_of(decoder))


def test_weights_stay_in_the_file(tmp_path):
    """Rows in order are views of the mapped file; those of q and k are permuted, a copy."""
    write_gguf(tiny_model("llama"), tmp_path / "x.gguf", "llama", "Q8_0")
    source = open_model(tmp_path / "x.gguf")
    decoder = load(source, "auto")
    first, size = source.reader.data.ctypes.data, source.reader.data.nbytes
    layer = decoder.weights.layers[0]
    mapped = [*layer.o.weights, *layer.down.weights, *layer.gate_up.weights, layer.qkv.weights[2]]
    assert all(first <= rows.data_ptr() < first + size for rows in mapped)
    assert not first <= layer.qkv.weights[0].data_ptr() < first + size


@pytest.mark.parametrize("size", [2, 4])
def test_shards_of_a_gguf_file(size, tmp_path):
    """Columns of a rank that are no whole blocks are numbers."""
    write_gguf(tiny_model("llama"), tmp_path / "x.gguf", "llama", "Q4_1")
    source = open_model(tmp_path / "x.gguf")
    x = torch.randn(3, 96)
    for rank in range(size):
        shard = Shard(rank, size)
        packed, floats = (load(source, weights, shard=shard) for weights in ("auto", "float"))
        for mine, theirs in zip(matrices_of(packed), matrices_of(floats), strict=True):
            rows = x[:, : theirs.shape[1]]
            got = mine.multiply(rows) if isinstance(mine, PackedMatrix) else rows @ mine.T
            assert_near(got, rows @ theirs.T, 1e-3)


def test_a_basis_of_v_is_folded(tmp_path):
    """V and output projections in another basis are float16; the others stay as they are."""
    write_gguf(tiny_model("llama"), tmp_path / "x.gguf", "llama", "Q4_0")
    source = open_model(tmp_path / "x.gguf")
    basis = Basis(torch.linalg.qr(torch.randn(3, 2, 16, 16))[0])
    packed = load(source, "auto", v_basis=basis)
    assert packed.weights.layers[0].qkv.types == ["q4_0", "q4_0", "f16"]
    ids = random_ids()
    assert_near(logits_of(packed, ids), logits_of(load(source, "float", v_basis=basis), ids), 2e-3)


def test_four_bits_are_too_few_for_another_basis(tmp_path):
    """Projections of attention have 16 bits then; on a GPU they are plain numbers."""
    tiny_directory("llama", tmp_path)
    source, ids = open_model(tmp_path), random_ids()
    basis = Basis(torch.linalg.qr(torch.randn(3, 2, 16, 16))[0])
    decoder = load(source, "int4", v_basis=basis)
    layer = decoder.weights.layers[1]
    assert layer.qkv.types == ["f16", "f16", "f16"]
    assert isinstance(layer.down, Int4Matrix)
    want = load(_Rounded(source, int4, int8, only="mlp"), "float", v_basis=basis)
    assert_near(logits_of(decoder, ids), logits_of(want, ids), 0.02)
    precision = Precision.of("int4", source, torch.device("cpu")).with_v_basis(torch.device("cuda"))
    assert precision.layer_matrix(64, ["x"], turned=True) is None


# ---- weights that are quantized when they are loaded ---------------------------------------------


class _Rounded:
    """A source with matrices of layers, and the head, as what a scheme rounds them to."""

    def __init__(self, source, layers, head, only=""):
        self.source, self.by, self.only = source, {True: layers, False: head}, only

    def __getattr__(self, name):
        return getattr(self.source, name)

    def tensors(self, *names, **making):
        for name, tensor in self.source.tensors(*names, **making):
            whole = tensor[WHOLE]
            rounded = self.by["layers" in name]
            as_is = rounded is None or whole.dim() == 1
            as_is |= "layers" in name and self.only not in name
            yield name, whole if as_is else rounded(whole)


def int8(weight):
    codes, scale = quantize_int8(weight.float())
    return codes.float() * scale


def fp8(weight):
    codes, scale = quantize_fp8(weight.float(), "row")
    return codes.float() * scale


def int4(weight):
    return Int4Rows.quantize(weight).dequantized()


@pytest.mark.parametrize("family", ["llama-bias", "llama-tied", "qwen3"])
@pytest.mark.parametrize(
    ("weights", "layers", "head", "tolerance"),
    # int8 and fp8 round activations, too; the head of int4 is in int8.
    [("int8", int8, int8, 0.05), ("fp8", fp8, None, 0.2), ("int4", int4, int8, 0.02)],
)
def test_quantized_at_loading(weights, layers, head, tolerance, family, tmp_path):
    tiny_directory(family, tmp_path)
    source, ids = open_model(tmp_path), random_ids()
    decoder = load(source, weights)
    assert all(isinstance(m, PackedMatrix) for m in matrices_of(decoder))
    assert isinstance(decoder.weights.head, PackedMatrix) == (head is not None)
    assert (decoder.weights.head is decoder.weights.embedding) == source.config.tied
    want = logits_of(load(_Rounded(source, layers, head), "float"), ids)
    assert_near(logits_of(decoder, ids), want, tolerance)


def test_int4_looks_for_the_best_steps():
    """Less error than codes from the smallest to the largest weight, and far less than per row."""
    weight = torch.randn(64, 256)
    low, high = (f(weight.view(64, 8, 32), -1, keepdim=True) for f in (torch.amin, torch.amax))
    step = (high - low) / 15
    plain = (((weight.view(64, 8, 32) - low) / step).round() * step + low).view(64, 256)
    row_step = weight.abs().amax(1, keepdim=True) / 7
    by_row = (weight / row_step).round() * row_step
    error = (Int4Rows.quantize(weight).dequantized() - weight).norm()
    assert error < 0.97 * (plain - weight).norm()
    assert error < 0.7 * (by_row - weight).norm()


@pytest.mark.parametrize("value", [0.0, 3.0, -300.0, 1e-9])
def test_int4_of_equal_weights(value):
    found = Int4Rows.quantize(torch.full((2, 64), value)).dequantized()
    assert ((found - value).abs() <= 1e-3 * abs(value) + 1e-8).all()


# ---- checkpoints that are quantized already ------------------------------------------------------


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_in_its_own_scheme(name, made):
    """int4 multiplies what the twin has; int8 rounds activations; no CPU has a kernel of fp8."""
    path, twin = made(name)
    source, ids = open_model(path), random_ids()
    decoder, want = load(source, "auto"), logits_of(load(open_model(twin), "float"), ids)
    kind = {"int4": Int4Matrix, "int8": Int8Matrix}.get(source.packing)
    assert all(isinstance(m, kind or torch.Tensor) for m in matrices_of(decoder))
    tolerance = {"int4": 1e-3 if "bfloat16" in name else 1e-5, "int8": 0.05, "fp8": 1e-5}
    assert_near(logits_of(decoder, ids), want, tolerance[source.packing])


def test_matrices_in_numbers_stay_so(made, tmp_path):
    """A matrix that its checkpoint has in floats is not rounded."""
    path, twin = made("int8")
    shutil.copytree(path, tmp_path / "x")
    name = "model.layers.0.mlp.down_proj"
    tensors = safetensors_torch.load_file(path / "model.safetensors")
    del tensors[f"{name}.weight_scale"]
    tensors[f"{name}.weight"] = safetensors_torch.load_file(twin / "model.safetensors")[
        f"{name}.weight"
    ]
    save(tmp_path / "x", tensors)
    layers = load(open_model(tmp_path / "x"), "auto").weights.layers
    assert isinstance(layers[0].down, torch.Tensor)
    assert isinstance(layers[1].down, Int8Matrix)


# ---- what is refused -----------------------------------------------------------------------------


def test_other_names(tmp_path):
    tiny_directory("llama", tmp_path)
    message = "weights is 'int3'; must be one of auto, float, int8, fp8, int4"
    with pytest.raises(ValueError, match=re.escape(message)):
        load(open_model(tmp_path), "int3")


def test_rows_that_groups_do_not_divide(tmp_path):
    tiny_directory("llama", tmp_path, intermediate_size=100)
    message = "a matrix has rows of 100 weights; must be a multiple of 32 for int4"
    with pytest.raises(ValueError, match=message):
        load(open_model(tmp_path), "int4")


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_weights_that_are_not_finite(weights, tmp_path):
    model = tiny_model("llama")
    model.model.layers[1].mlp.up_proj.weight.data[2, 3] = torch.nan
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"model.layers.1.mlp.up_proj.weight: .*NaN or infinity"):
        load(open_model(tmp_path), weights)


def test_fp8_without_hardware_for_it(monkeypatch, tmp_path, caplog):
    tiny_directory("llama", tmp_path)
    source = RandomSource(open_model(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    message = "weights is fp8, and this GPU has compute capability 8.0; must be 8.9 or higher"
    with pytest.raises(ValueError, match=message):
        Precision.of("fp8", source, torch.device("cuda"))
    with caplog.at_level(logging.WARNING):
        Precision.of("fp8", source, torch.device("cpu"))
    assert "there is no kernel" in caplog.text
