"""Settings of quantized checkpoints that are not supported: one error that names them."""

import json
import re

import pytest

from gossamer.models import open_model
from tests.models.quantized import CHECKPOINTS, compressed

CT, AWQ, GPTQ = (
    f"quantization_config ({name}): " for name in ("compressed-tensors", "awq", "gptq")
)


def awq(**settings):
    return {**CHECKPOINTS["awq-32"].config, **settings}


def gptq(**settings):
    return {**CHECKPOINTS["gptq"].config, **settings}


def group(**settings):
    """compressed-tensors with other settings of its group."""
    config = compressed("pack-quantized", strategy="group", group_size=32)
    config["config_groups"]["group_0"] |= settings
    return config


def packed(**weights):
    return compressed("pack-quantized", **{"strategy": "group", "group_size": 32, **weights})


METHODS = "must be one of awq, compressed-tensors, fp8, gptq"
CONFIGS = [
    (
        {"quant_method": "bitsandbytes"},
        f"quantization_config: quant_method is 'bitsandbytes'; {METHODS}",
    ),
    ({"quant_method": "hqq"}, f"quantization_config: quant_method is 'hqq'; {METHODS}"),
    ({"quant_method": ["awq"]}, f"quantization_config: quant_method is ['awq']; {METHODS}"),
    ([1], "quantization_config is [1]; must be an object"),
    (awq(bits=8), AWQ + "bits is 8; must be 4"),
    (awq(version="gemv"), AWQ + "version is 'gemv'; must be 'gemm'"),
    (awq(group_size=48), AWQ + "group_size is 48; must be a multiple of 32 or -1, a whole row"),
    (awq(group_size="32"), AWQ + "group_size is '32'; must be a multiple of 32 or -1, a whole row"),
    (awq(zero_point=1), AWQ + "zero_point is 1; must be True or False"),
    (
        awq(modules_to_not_convert="lm_head"),
        AWQ + "modules_to_not_convert is 'lm_head'; must be a list of names of modules",
    ),
    (gptq(bits=3), GPTQ + "bits is 3; must be 4"),
    (
        gptq(checkpoint_format="marlin"),
        GPTQ + "checkpoint_format is 'marlin'; must be 'gptq' or 'gptq_v2'",
    ),
    (
        gptq(dynamic={"-:lm_head": {}, "+:.*up_proj": {"bits": 8}}),
        GPTQ + "dynamic has settings for '+:.*up_proj'; must be the same for all",
    ),
    (
        {"quant_method": "fp8", "weight_block_size": [64, 128]},
        "quantization_config (fp8): weight_block_size is [64, 128]; must be None or [128, 128]",
    ),
    (
        {"quant_method": "fp8", "fmt": "e5m2"},
        "quantization_config (fp8): fmt is 'e5m2'; must be 'e4m3'",
    ),
    (
        compressed("marlin-24"),
        CT + "format is 'marlin-24'; must be 'pack-quantized', 'int-quantized' or "
        "'float-quantized'",
    ),
    (packed(num_bits=8), CT + "num_bits is 8; must be 4"),
    (packed(type="float"), CT + "type is 'float'; must be 'int'"),
    (packed(strategy="block"), CT + "strategy is 'block'; must be 'group' or 'channel'"),
    (packed(group_size=16), CT + "group_size is 16; must be a multiple of 32"),
    (
        compressed("int-quantized", num_bits=8, strategy="channel", symmetric=False),
        CT + "symmetric is False; must be True",
    ),
    (
        compressed("int-quantized", num_bits=8, strategy="tensor"),
        CT + "strategy is 'tensor'; must be 'channel'",
    ),
    (
        compressed("float-quantized", num_bits=8, type="float", strategy="block"),
        CT + "strategy is 'block'; must be 'tensor' or 'channel'",
    ),
    (group(targets=["re:.*q_proj"]), CT + "targets is ['re:.*q_proj']; must be ['Linear']"),
    (group(weights=None), CT + "weights is None; must be the settings of weights"),
    (
        {**packed(), "config_groups": {"a": {}, "b": {}}},
        CT + "config_groups is ['a', 'b']; must be one group, for Linear",
    ),
    (
        {**packed(), "sparsity_config": {"format": "sparse-24-bitmask"}},
        CT + "format is 'sparse-24-bitmask'; must be 'dense'",
    ),
    (
        {**packed(), "transform_config": {"config_groups": {"R3": {}}}},
        CT + "transform_config has R3; must be empty",
    ),
]


@pytest.mark.parametrize(("config", "message"), CONFIGS, ids=range(len(CONFIGS)))
def test_settings(config, message, made, tmp_path):
    change = {"quantization_config": config}
    path = tmp_path / "config.json"
    path.write_text((made("awq-32")[0] / "config.json").read_text())
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        open_model(tmp_path)
    assert str(caught.value) == f"{path}: not a config that can be used: {message}"
