"""Quantized checkpoints with tensors that cannot be used: one error that names the tensor."""

import json
import re

import pytest
import torch

from gossamer.models import load_decoder, open_model
from gossamer.models.source import WHOLE
from tests.models.quantized import save

safetensors_torch = pytest.importorskip("safetensors.torch")

UP = "model.layers.1.mlp.up_proj"  # [416, 256]
OF = "{} is missing; {} has {} for each matrix"
ORDER = "has columns in another order (act order, desc_act); must be groups of 32 neighbours"


pytestmark = pytest.mark.usefixtures("one_thread")


def copied(made, name, folder, change_config=None, change=None):
    """The checkpoint with other settings, and with other tensors of one module."""
    path, _ = made(name)
    config = json.loads((path / "config.json").read_text())
    if change_config:
        change_config(config)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = safetensors_torch.load_file(path / "model.safetensors")
    if change:
        change(tensors)
    save(folder, tensors)
    return folder


def without(part):
    return lambda tensors: tensors.pop(f"{UP}.{part}")


def set_to(part, change):
    def apply(tensors):
        tensors[f"{UP}.{part}"] = change(tensors.get(f"{UP}.{part}"))

    return apply


def with_last(number):
    def change(tensor):
        tensor.reshape(-1)[-1] = number
        return tensor

    return change


QUANTITIES = {
    "awq": "qweight, qzeros and scales",
    "gptq": "qweight, qzeros and scales",
    "int4": "weight_packed and weight_scale",
}
TENSORS = [
    *(
        (name, without(part), OF.format(f"{UP}.{part}", label, QUANTITIES[name.split("-")[0]]))
        for name, label, parts in (
            ("awq-32", "awq", ("qweight", "qzeros", "scales")),
            ("gptq", "gptq", ("qweight", "qzeros", "scales")),
            ("int4-groups", "compressed-tensors", ("weight_packed", "weight_scale")),
        )
        for part in parts
    ),
    (
        "int4-asymmetric",
        without("weight_zero_point"),
        OF.format(
            f"{UP}.weight_zero_point",
            "compressed-tensors",
            "weight_packed, weight_scale and weight_zero_point",
        ),
    ),
    (
        "int8",
        without("weight_scale"),
        OF.format(f"{UP}.weight_scale", "compressed-tensors", "weight and weight_scale"),
    ),
    (
        "fp8",
        without("weight_scale"),
        OF.format(f"{UP}.weight_scale", "fp8", "weight and weight_scale"),
    ),
    (
        "fp8-blocks",
        without("weight_scale_inv"),
        OF.format(f"{UP}.weight_scale_inv", "fp8", "weight and weight_scale_inv"),
    ),
    ("gptq-v2", without("g_idx"), OF.format(f"{UP}.g_idx", "gptq", QUANTITIES["gptq"])),
    ("awq-32", set_to("scales", lambda s: s[:-1]), f"{UP}.scales is [7, 416]; must be [8, 416]"),
    ("awq-32", set_to("qzeros", lambda z: z.T), f"{UP}.qzeros is [52, 8]; must be [8, 52]"),
    (
        "gptq",
        set_to("qweight", lambda q: q[:-1]),
        f"{UP}.weight has 248 columns; must be a multiple of 32",
    ),
    ("gptq", set_to("qweight", lambda q: q.long()), f"{UP}.qweight is of I64; must be I32"),
    ("gptq", set_to("g_idx", lambda g: g.flip(0)), f"{UP}.g_idx {ORDER}"),
    (
        "int4-groups",
        set_to("weight_g_idx", lambda _: torch.arange(256).int() % 8),
        f"{UP}.weight_g_idx {ORDER}",
    ),
    (
        "int4-groups",
        set_to("weight_shape", lambda s: s.flip(0)),
        f"{UP}.weight_shape says [256, 416]; must be [416, 256]",
    ),
    (
        "int4-groups",
        set_to("weight_zero_point", lambda _: torch.zeros(52, 8).int()),
        f"{UP}.weight_zero_point is there, and the config says that weights are symmetric",
    ),
    (
        "int8",
        set_to("weight_zero_point", lambda _: torch.ones(416, 1, dtype=torch.int8)),
        f"{UP}.weight_zero_point is not all zeros, and its weights must be symmetric",
    ),
    (
        "int8",
        set_to("weight_scale", lambda s: s[:-1]),
        f"{UP}.weight_scale is [415, 1]; must be [416] or [416, 1]",
    ),
    ("int8", set_to("weight", lambda w: w[0]), f"{UP}.weight is [256]; must be a matrix"),
    (
        "fp8-static",
        set_to("weight_scale", lambda s: s.repeat(416)),
        f"{UP}.weight_scale is [416]; must be [], [1] or [1, 1]",
    ),
    (
        "fp8-static",
        set_to("weight_scale", lambda s: s.int()),
        f"{UP}.weight_scale is of I32; must be F16, BF16 or F32",
    ),
    (
        "fp8-blocks",
        set_to("weight_scale_inv", lambda s: s[:3]),
        f"{UP}.weight_scale_inv is [3, 2]; must be [4, 2]",
    ),
    (
        "fp8",
        set_to("weight", lambda w: w.float().to(torch.float8_e5m2)),
        f"{UP}.weight is of F8_E5M2; must be F8_E4M3",
    ),
]


@pytest.mark.parametrize(("name", "change", "message"), TENSORS, ids=range(len(TENSORS)))
def test_tensors(name, change, message, made, tmp_path):
    source = open_model(copied(made, name, tmp_path, change=change))
    label = source.scheme.label
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        list(source.tensors())
    assert str(caught.value) == f"{tmp_path}: its {label} matrices cannot be used: {message}"
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path.name}: {caught.value}")):
        load_decoder(source, dtype=torch.float32, device="cpu", max_len=8)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("awq-32", "scales"),
        ("gptq", "scales"),
        ("int4-channels", "weight_scale"),
        ("int8", "weight_scale"),
        ("fp8", "weight_scale"),
        ("fp8-blocks", "weight_scale_inv"),
    ],
)
def test_scales_that_are_not_finite(name, part, number, made, tmp_path):
    copied(made, name, tmp_path, change=set_to(part, with_last(number)))
    tensor = dict(open_model(tmp_path).tensors())[f"{UP}.weight"]
    file = tmp_path / "model.safetensors"
    message = f"{file}: {UP}.{part} has scales that are NaN or infinite; must be finite"
    for read in (tensor.__getitem__, tensor.packed):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            read(WHOLE)


def test_scales_beyond_float16(made, tmp_path):
    """They cannot be packed; in floats they are what they are."""
    copied(made, "int4-groups", tmp_path, change=set_to("weight_scale", with_last(1e5)))
    tensor = dict(open_model(tmp_path).tensors())[f"{UP}.weight"]
    assert tensor[WHOLE].isfinite().all()
    message = f"{UP}.weight_scale has a scale of 99840; must be at most 65504 in size for float16"
    with pytest.raises(ValueError, match=re.escape(message)):
        tensor.packed(WHOLE)


def test_groups_that_do_not_divide(made, tmp_path):
    def larger(config):
        config["quantization_config"]["group_size"] = 96

    copied(made, "gptq", tmp_path, change_config=larger)
    module = "model.layers.0.mlp.down_proj"  # the first: 416 columns
    message = f"{module}.weight has 416 columns; must be a multiple of its group_size, 96"
    with pytest.raises(ValueError, match=re.escape(message)):
        list(open_model(tmp_path).tensors())


@pytest.mark.parametrize(
    ("name", "key", "ignored"),
    [
        ("int8", "ignore", [UP]),
        ("int8", "ignore", ["re:.*1.mlp.up_"]),
        ("awq-32", "modules_to_not_convert", ["layers.1"]),
        ("fp8-blocks", "ignored_layers", [UP]),
    ],
)
def test_ignored_modules_are_not_read_as_quantized(name, key, ignored, made, tmp_path):
    def ignore(config):
        config["quantization_config"][key] = ignored

    source = open_model(copied(made, name, tmp_path, change_config=ignore))
    names = [found for found, _ in source.tensors() if found.startswith(UP)]
    assert len(names) >= 2  # the files' own
    with pytest.raises(ValueError, match=r"is of torch\.|has no place for|are missing"):
        load_decoder(source, dtype=torch.float32, device="cpu", max_len=8)
