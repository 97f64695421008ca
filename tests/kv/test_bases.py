"""K's basis at run time."""

import pytest
import torch

from gossamer.kv.bases import turn_q_and_k


def test_scores_stay_what_they_were():
    basis = torch.linalg.qr(torch.randn(2, 16, 16, dtype=torch.float64))[0]
    q, k = torch.randn(3, 6, 10, 16).double(), torch.randn(3, 2, 10, 16).double()
    turned_q, turned_k = turn_q_and_k(q, k, basis)
    repeated = [t.repeat_interleave(3, dim=1) for t in (k, turned_k)]
    torch.testing.assert_close(turned_q @ repeated[1].mT, q @ repeated[0].mT)
    torch.testing.assert_close(turned_k[:, 1], k[:, 1] @ basis[1])
    assert not torch.allclose(turned_q, q)


@pytest.mark.parametrize(
    ("q", "k", "message"),
    [
        ((1, 5, 4, 16), (1, 2, 4, 16), r"q has shape \[1, 5, 4, 16\]; must have 2 KV heads"),
        ((1, 6, 4, 16), (1, 3, 4, 16), r"k has shape \[1, 3, 4, 16\]; must have 2 KV heads"),
        ((1, 6, 4, 8), (1, 2, 4, 8), r"q has shape .* of 16, as the basis \[2, 16, 16\]"),
        ((4, 16), (1, 2, 4, 16), r"q has shape \[4, 16\]; must have"),
    ],
)
def test_bad_input(q, k, message):
    with pytest.raises(ValueError, match=message):
        turn_q_and_k(torch.zeros(q), torch.zeros(k), torch.zeros(2, 16, 16))
