"""The attention that measures quality, where its result is known."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks.kv_quality import ROWS, PackedAttention, check_config
from gossamer.integrations.transformers import causal_attention
from gossamer.kv.config import KVConfig

TOKENS, HEADS, GROUP, HEAD_DIM = 128, 2, 3, 64


def random_calibration() -> SimpleNamespace:
    bases = torch.linalg.qr(torch.randn(2, 1, HEADS, HEAD_DIM, HEAD_DIM))[0]
    weights = torch.rand(2, 1, HEADS, HEAD_DIM)
    return SimpleNamespace(
        k_basis=bases[0], v_basis=bases[1], k_weights=weights[0], k_basis_weights=weights[1]
    )


def attend(spec: str) -> tuple[torch.Tensor, torch.Tensor]:
    q = torch.randn(1, HEADS * GROUP, TOKENS, HEAD_DIM)
    k, v = torch.randn(2, 1, HEADS, TOKENS, HEAD_DIM)
    packed = PackedAttention(KVConfig.parse(spec), random_calibration())
    return packed(0, q, k, v, 0.125), causal_attention(0, q, k, v, 0.125)


@pytest.mark.parametrize("bases", ["", ",basis=pca"])
@pytest.mark.parametrize(
    "spec",
    [
        "dense:fp32,window=0",
        "k=sparse:64:fp32,v=sparse:64:fp32,window=0",
        "k=sparse:64:fp32,v=dense:fp32,window=32,k_policy=weighted",
        "sparse:k=1,v=1,window=128",  # everything is near
    ],
)
def test_what_loses_nothing_changes_nothing(spec, bases):
    got, want = attend(spec + bases)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_pruning_changes_only_what_is_far():
    """The first block and the window see everything dense; later queries do not."""
    got, want = attend("sparse:k=8,v=8,window=32")
    torch.testing.assert_close(got[:, :, :64], want[:, :, :64], rtol=1e-4, atol=1e-5)
    assert (got[:, :, 64:] - want[:, :, 64:]).abs().max() > 0.01


def test_the_table_can_be_measured():
    for spec in ROWS:
        check_config(KVConfig.parse(spec))
        assert str(KVConfig.parse(spec)) == spec


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "sparse:k=8,v=8,k_policy=query_aware",
            "policy is 'query_aware'; must be one of magnitude",
        ),
        ("sparse:k=8,v=8,prefill=dense", "prefill is 'dense'; must be 'blocks'"),
    ],
)
def test_what_it_cannot_show_is_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        check_config(KVConfig.parse(spec))
