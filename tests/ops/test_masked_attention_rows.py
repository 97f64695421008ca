"""What masked_attention_rows computes: every backend against a float64 oracle on the dense mask."""

from dataclasses import replace

import pytest
import torch

from gossamer.ops import masked_attention_rows
from tests.ops.masked import Call, check, make_call
from tests.ops.masked_errors import BAD_ROW_CALLS, BAD_ROW_VALUES
from tests.ops.spec import LAYOUTS, poison, runs

BAD_CALLS, BAD_VALUES = BAD_ROW_CALLS, BAD_ROW_VALUES  # which the contract tests look up here

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
by_backend = pytest.mark.parametrize(
    ("backend", "device"),
    [pytest.param(*run.values[1:], marks=run.marks) for run in runs("masked_attention_rows")],
)


def arguments(call: Call):
    """Of the op, with the call's mask as lists of keys."""
    batch, heads = call.seen.shape[:2]
    rows = call.seen.flatten(0, 2)
    counts = torch.cat([torch.zeros(1, dtype=torch.long, device=rows.device), rows.sum(1)])
    lists = counts.cumsum(0).int(), rows.nonzero()[:, 1].int()
    return call.q, call.k, call.v, *lists, call.bias, batch, heads, call.scale, call.softcap


def run(call: Call, backend: str, device: str):
    moved = call.to(device)
    got = masked_attention_rows(*arguments(moved), backend=backend)
    check(moved, got)
    return got


def sparse(q_len: int, kv_len: int) -> torch.Tensor:
    """A query that sees nothing, one that sees all, the others a few keys."""
    seen = torch.rand(q_len, kv_len) < 0.1
    seen[q_len // 2] = False
    seen[-1] = True
    return seen


@by_backend
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("head_dim", [32, 40, 64, 80, 96, 128, 256])
def test_head_dims(backend, device, dtype, head_dim):
    if (backend, device, dtype) == ("triton", "cpu", BF16) and head_dim != 64:
        return  # the interpreter multiplies float32 then, as in the cases of that
    call = make_call(sparse(3, 70), heads=2, kv_heads=1, head_dim=head_dim, dtype=dtype)
    run(call, backend, device)


@by_backend
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (6, 2), (4, 1), (20, 1)])
def test_heads_that_share_keys(backend, device, heads, kv_heads):
    run(make_call(sparse(3, 40), batch=2, heads=heads, kv_heads=kv_heads), backend, device)


@by_backend
@pytest.mark.parametrize("shape", [(2, 1), (1, 4), (2, 4)], ids=str)
def test_masks_of_batches_and_heads(backend, device, shape):
    seen = torch.rand(*shape, 3, 50) < 0.3
    seen[-1, -1] = False
    run(make_call(seen, batch=2, heads=4, kv_heads=2), backend, device)


@by_backend
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (1, 1000), (5, 31), (3, 33), (0, 9), (3, 0)])
def test_lengths(backend, device, q_len, kv_len):
    seen = sparse(q_len, kv_len) if q_len else torch.ones(0, kv_len).bool()
    run(make_call(seen), backend, device)


@by_backend
def test_softcap_and_bias(backend, device):
    seen = sparse(4, 50)
    for options in (
        {"softcap": 0.7},
        {"bias": torch.randn(4, 50)},
        {"bias": torch.randn(2, 1, 50).half(), "softcap": 3.0},
        {"bias": torch.randn(50, 4).bfloat16().T},
    ):
        run(make_call(seen, **options), backend, device)


@by_backend
@pytest.mark.parametrize("layout", ["contiguous", "misaligned", "sliced_rows", "expanded"])
@pytest.mark.usefixtures("poisoned")
def test_layouts_in_a_sea_of_nan(backend, device, layout):
    plain = make_call(sparse(3, 70), batch=2, heads=2, kv_heads=1, head_dim=40)
    place = LAYOUTS[layout]
    call = replace(plain, q=place(plain.q), k=place(plain.k), v=place(plain.v))
    poison([call.q.shape, call.q.shape[:3]], F32, device)
    run(call, backend, device)


@by_backend
def test_keys_that_are_not_listed_may_be_nan(backend, device):
    seen = sparse(4, 70)
    seen[:, 20:] = False
    call = make_call(seen)
    want = run(call, backend, device)
    call.k[:, :, 20:], call.v[:, :, 20:] = torch.nan, torch.nan
    got = masked_attention_rows(*arguments(call.to(device)), backend=backend)
    assert all(map(torch.equal, got, want))


def test_agrees_with_tiles_on_the_cpu():
    call = make_call(torch.rand(200, 300) < 0.2, batch=2, heads=4, kv_heads=2)
    got, want = masked_attention_rows(*arguments(call), backend="cpu"), call.attend("cpu")
    torch.testing.assert_close(got, want)
