"""K's basis at run time."""

import pytest
import torch

from gossamer.kv.bases import Basis, QueryKeyTurn, inverse, side_by_side, turn_q_and_k


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


def well_conditioned(*shape):
    """Invertible matrices that are far from orthogonal."""
    first, second = (torch.linalg.qr(torch.randn(*shape, dtype=torch.float64))[0] for _ in "ab")
    return first @ torch.diag_embed(torch.logspace(-1, 1, shape[-1]).double()) @ second


def test_a_basis_of_k_leaves_scores_up_to_a_shift_of_each_query():
    """Any invertible matrix, and a mean of K: softmax sees neither."""
    mean = torch.randn(3, 2, 16, dtype=torch.float64)
    basis = Basis(well_conditioned(3, 2, 16, 16), mean)
    turn = QueryKeyTurn(basis, 3, torch.float64, torch.device("cpu"))
    both = torch.randn(10, 8, 16, dtype=torch.float64)
    for q, k in ((both[:, :6], both[:, 6:]), (both[:, :6].clone(), both[:, 6:].clone())):
        turned_q, turned_k = turn(1, q, k)
        torch.testing.assert_close(turned_k[:, 1], (k[:, 1] - mean[1, 1]) @ basis.matrix[1, 1])
        for head in range(6):
            scores = q[:, head] @ k[:, head // 3].T
            shift = turned_q[:, head] @ turned_k[:, head // 3].T - scores
            torch.testing.assert_close(shift, shift[:, :1].expand_as(shift))
            torch.testing.assert_close(shift[:, 0], -q[:, head] @ mean[1, head // 3])


def test_parts_of_a_basis():
    basis = Basis(well_conditioned(3, 4, 8, 8), torch.randn(3, 4, 8))
    part = basis.part(slice(1, 2), slice(2, 4))
    assert torch.equal(part.matrix, basis.matrix[1:2, 2:4])
    assert torch.equal(part.mean, basis.mean[1:2, 2:4])
    torch.testing.assert_close(part.inverse, basis.inverse[1:2, 2:4])
    assert Basis(basis.matrix).part().mean is None


def test_neighbours_are_not_copied():
    qkv = torch.randn(5, 9, 8)
    q, k, v = qkv[:, :6], qkv[:, 6:8], qkv[:, 8:]
    both = side_by_side(q, k)
    assert both.data_ptr() == q.data_ptr()
    assert torch.equal(both, qkv[:, :8])
    for other in (v, k.clone(), qkv[:, 7:9]):
        joined = side_by_side(q, other)
        assert torch.equal(joined, torch.cat([q, other], 1))
        assert joined.data_ptr() != q.data_ptr()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_costs_no_more_than_in_an_orthogonal_basis(dtype):
    """Of scores, in the type of the model: the inverse is that of the rounded matrix."""
    torch.manual_seed(0)
    q, k = torch.randn(64, 1, 64, dtype=torch.float64), torch.randn(64, 1, 64, dtype=torch.float64)
    q, k = q.to(dtype), k.to(dtype)
    exact = q[:, 0].double() @ k[:, 0].double().T
    orthogonal = torch.linalg.qr(torch.randn(1, 1, 64, 64, dtype=torch.float64))[0]
    scaled = orthogonal * torch.logspace(-1, 2, 64).double()  # steps: any size by channel

    def error(basis):
        turned = QueryKeyTurn(Basis(basis), 1, dtype, torch.device("cpu"))(0, q, k)
        return (turned[0][:, 0].double() @ turned[1][:, 0].double().T - exact).norm()

    plain = turn_q_and_k(q.transpose(0, 1), k.transpose(0, 1), orthogonal[0])
    before = (plain[0][0].double() @ plain[1][0].double().T - exact).norm()
    assert error(orthogonal) < 1.1 * before
    assert error(scaled) < 1.1 * before


@pytest.mark.parametrize("dims", [64, 160, 256])
def test_inverses_of_many_matrices(dims):
    """torch's own are wrong for wide ones on some CPUs, in a thread pool that has worked before."""
    matrix = well_conditioned(2, 3, dims, dims)
    for _ in range(5):
        product = inverse(matrix) @ matrix
        torch.testing.assert_close(product, torch.eye(dims).double().expand_as(product))
