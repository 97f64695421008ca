"""No slow path without a word: every cache that we name has a tuned kernel on GPUs."""

import pytest
import torch

from gossamer.kv import Calibration, KVConfig, KVShape
from gossamer.kv.speed import cuda_limits
from tests.docs.specs import named_specs, parses

# What looks like a spec and is none.
NO_SPECS = {
    "sparse:k=..,v=": "a message that says what specs look like",
    "sparse:k=16,v=64,k_policy=": "an f-string; its policies do not change the kernel",
}
SPECS = named_specs()
HEAD_DIMS = (64, 128)


def test_specs_are_found():
    assert {"dense", "dense:int8", "sparse:k=40,v=40", "coded:25%"} <= set(SPECS)
    assert any("Makefile" in places for places in SPECS.values())
    assert {spec for spec in SPECS if not parses(spec)} == set(NO_SPECS)


@pytest.mark.parametrize("spec", sorted(set(SPECS) - set(NO_SPECS)))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_tuned_kernel(spec, dtype):
    possible = 0
    for head_dim in HEAD_DIMS:
        shape = KVShape(1, 32, 8, head_dim)
        config = KVConfig.of(spec, dtype).resolve(Calibration.blank(shape, "any"))
        try:
            config.block_bytes(shape)
        except ValueError:  # bits of another head_dim
            continue
        possible += 1
        reason = cuda_limits(config, shape, dtype)
        assert reason is None, f"{spec} in {set(SPECS[spec])}, head_dim {head_dim}: {reason}"
    assert possible
