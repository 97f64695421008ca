"""Curves, the shipped file, and GPUs that nobody measured."""

import json

import pytest

from benchmarks.reports.gpus import h200
from gossamer.planning.gpu import (
    GPU,
    SHIPPED,
    Curve,
    DataSheet,
    layout_of,
    load_gpu,
    load_gpu_file,
)
from tests.planning.given import CODED, kv

SHEET = {"name": "Half", "memory": 70e9, "bandwidth": 2.4e12, "flops": 494.5e12, "link": 225e9}


def test_a_curve_goes_through_its_points_and_on():
    curve = Curve((10, 20, 40), (1.0, 3.0, 4.0))
    found = [curve.at(x) for x in (10, 15, 20, 30, 40, 60)]
    assert found == pytest.approx([1.0, 2.0, 3.0, 3.5, 4.0, 5.0])
    assert curve.at(5) == 0.0  # the first line, but no time is negative
    assert curve.times(2).at(30) == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("sizes", "seconds"), [((1,), (1,)), ((1, 1), (1, 2)), ((1, 2), (2, 1)), ((1, 2), (1, 2, 3))]
)
def test_what_is_no_curve(sizes, seconds):
    with pytest.raises(ValueError, match="must be two points or more that rise"):
        Curve(sizes, seconds)


def test_the_shipped_file_is_made_of_the_committed_results():
    text = h200().to_json()
    assert text == (SHIPPED / "h200.json").read_text(), "run python -m benchmarks.reports.gpus"
    assert GPU.from_json(text) == h200()


def test_measured_layouts_are_found_in_both_16_bit_types():
    found = load_gpu("h200")
    for spec in ("dense", "dense:int8", "dense:int4", CODED, "sparse:k=40,v=40"):
        curve, measured = found.decode_curve(kv(spec), 128)
        assert measured, spec
        assert curve.at(1e9) > curve.at(1e8)
    assert layout_of(kv("dense:fp16"), 128) == layout_of(kv("dense:bf16"), 128)
    # 8 x 32,768 tokens of 8 heads, as benchmarks/results/nvidia-h200 has them.
    dense = found.decode_curve(kv("dense"), 128)[0]
    assert dense.at(8 * 8 * 32768 * 512) == pytest.approx(250e-6, rel=0.02)


def test_other_layouts_are_those_of_the_same_kernel_and_similar_bytes():
    found = load_gpu("h200")
    curve, measured = found.decode_curve(kv("sparse:k=36,v=36"), 128)
    assert not measured
    assert curve in [found.decode_curve(kv(f"sparse:k={n},v={n}"), 128)[0] for n in (32, 40)]
    curve, measured = found.decode_curve(kv("dense:int4"), 72)  # heads that nobody measured
    assert not measured
    bare = GPU.from_json(found.to_json())
    bare = type(bare)(**{**vars(bare), "decode": bare.decode[:1]})
    with pytest.raises(ValueError, match="must be of the family dense"):
        bare.decode_curve(kv(CODED), 128)


def test_half_a_gpu_takes_twice_as_long(tmp_path):
    path = tmp_path / "half.json"
    path.write_text(json.dumps(SHEET))
    whole, half = load_gpu("h200"), load_gpu_file(path)
    assert (half.name, half.scaled_from) == ("Half", "NVIDIA H200")
    assert half.gemm.at(1) == pytest.approx(2 * whole.gemm.at(1))
    assert half.gemm.at(2048) == pytest.approx(2 * whole.gemm.at(2048))
    ours, theirs = (g.decode_curve(kv("dense"), 128)[0].at(1e8) for g in (half, whole))
    assert ours == pytest.approx(2 * theirs)
    assert half.engine.prompt_flops == pytest.approx(whole.engine.prompt_flops / 2)


def test_memory_and_arithmetic_are_scaled_apart():
    whole = load_gpu("h200")
    sheet = DataSheet(141e9, whole.sheet.bandwidth, whole.sheet.flops / 2, 450e9)
    weak = whole.scaled("Weak", sheet)
    assert weak.gemm.at(1) == whole.gemm.at(1)
    added = [g.gemm.at(2048) - g.gemm.at(1) for g in (weak, whole)]
    assert added[0] == pytest.approx(2 * added[1])


def test_names_and_files_that_are_none(tmp_path):
    with pytest.raises(ValueError, match="gpu is 'b200'; must be h200"):
        load_gpu("b200")
    path = tmp_path / "gpu.json"
    for text, message in (
        ("{", "not JSON"),
        ("[1]", "must be an object with name, memory, bandwidth, flops, link"),
        (json.dumps({"name": "x"}), "must be an object with"),
        (json.dumps(SHEET | {"memory": -1}), "memory is -1; must be a number above 0"),
        (json.dumps(SHEET | {"flops": "1"}), "flops is '1'"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            load_gpu_file(path)
