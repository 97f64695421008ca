"""What decode_attention gives: attention in float64 over what each query sees, and nothing else.

Caches that `build` makes are full of NaN, and of pages that do not exist, wherever no query looks.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.ops import BlockFormat, DenseWindow, decode_attention
from tests.ops.decode import Call, Case, Pool, build, spoil
from tests.ops.decode_cases import (
    BF16,
    CODES,
    F16,
    F32,
    FORMATS,
    MAGNITUDES,
    MORE_FORMATS,
    RUNS,
    SHAPES,
    any_case,
    interpreted,
    parameters,
)
from tests.ops.decode_errors import BAD_CALLS, BAD_VALUES
from tests.ops.decode_oracle import check, expected, same
from tests.ops.spec import LAYOUTS, poison

__all__ = ["BAD_CALLS", "BAD_VALUES"]  # which the contract tests look up here

by_backend = pytest.mark.parametrize(("backend", "device"), RUNS)
UNSEEN = [
    Case(lens=(100, 40, 0), kv_heads=1, q_len=2, window=0, sink=32),
    Case(lens=(100, 40, 7), kv_heads=1, q_len=8, page_size=64, sliding=33),
    Case(BlockFormat(64, 24, "int4"), BlockFormat(64, None, "int4", "group"), kv_heads=1),
    Case(BlockFormat(64, 7, "int8", "channel"), BlockFormat(64, None, "fp8_e4m3"), kv_heads=1),
]


@pytest.mark.parametrize(("case", "backend", "device"), parameters(FORMATS, MORE_FORMATS))
def test_formats(case, backend, device):
    call = build(case, device)
    check(call, call.attend(backend))


@pytest.mark.parametrize(("case", "backend", "device"), parameters(MAGNITUDES, CODES))
def test_codes(case, backend, device):
    call = build(case, device)
    check(call, call.attend(backend))


@pytest.mark.parametrize(("case", "backend", "device"), parameters(SHAPES))
@pytest.mark.usefixtures("poisoned")
def test_shapes(case, backend, device):
    call = build(case, device)
    check(call, call.attend(backend))


@by_backend
def test_everything_at_once(backend, device):
    cases = any_case(70, (F16, F32)) if interpreted(backend, device) else any_case()

    @settings(max_examples=10 if backend == "triton" else 100, deadline=None)
    @given(case=cases, seed=st.integers(0, 2**31))
    def agrees_with_oracle(case, seed):
        torch.manual_seed(seed)
        call = build(case, device)
        try:
            got = call.attend(backend)
        except pytest.skip.Exception:
            return
        check(call, got)

    agrees_with_oracle()


@by_backend
def test_the_window_moves_block_by_block(backend, device):
    """Every length at once, so that queries of a sequence lie on both sides of each border."""
    step = 13 if interpreted(backend, device) else 1
    case = Case(lens=tuple(range(1, 170, step)), kv_heads=1, q_len=3, pages=6, window=32, sink=32)
    call = build(case, device)
    check(call, call.attend(backend))


@by_backend
def test_results_are_written_whole(backend, device):
    """Into memory that held NaN, by every sequence: with and without tokens and queries."""
    call = build(Case(lens=(0, 3, 40), q_len=5, kv_heads=1), device)
    reused = False
    for _ in range(5):
        poisoned, size = poison([call.q.shape] * 64, F16, device), 2 * call.q.numel()
        out, lse = call.attend(backend)
        reused |= any(start <= out.data_ptr() < start + size for start in poisoned)
        assert not out[0].any()
        assert not out[1, :2].any()
        assert (lse[0] == -torch.inf).all()
        assert (lse[1, :2] == -torch.inf).all()
        assert out[1, 2:].any(-1).all()
        assert lse[1:, 2:].isfinite().all()
    assert reused, "no result landed in poisoned memory"


@by_backend
@pytest.mark.parametrize("case", UNSEEN, ids=str)
def test_what_no_query_sees_changes_nothing(backend, device, case):
    """The same bits with zeros or other numbers in place of NaN, and pages that exist."""
    call = build(case)
    want = call.to(device).attend(backend)
    for fill in (0, 0x35):
        pools = []
        for pool in (call.main, call.dense) if call.dense else (call.main,):
            formats = (case.k, case.v) if pool is call.main else (BlockFormat(64), BlockFormat(64))
            k, v = pool.k_blocks.clone(), pool.v_blocks.clone()
            for blocks, rows, fmt in zip((k, v), (pool.k_rows, pool.v_rows), formats, strict=True):
                spoil(blocks, fmt, np.isnan(rows).any((1, 2)), fill)
                assert not torch.equal(blocks, pool.k_blocks if blocks is k else pool.v_blocks)
            table = pool.table.clone()
            table[(table < 0) | (table >= len(k) * 32 // case.page_size)] = 0
            assert not torch.equal(table, pool.table)
            pools.append(replace(pool, k_blocks=k, v_blocks=v, table=table))
        assert same(Call(case, call.q, call.lens, *pools).to(device).attend(backend), want)


@by_backend
@pytest.mark.parametrize("window", [None, 0])
def test_a_nan_stays_in_its_sequence(backend, device, window):
    """In a row of K, of V or a query: the other sequences keep their bits."""
    case = Case(lens=(70, 40, 35), kv_heads=1, window=window)
    for where in ("k_blocks", "v_blocks", "q"):
        call = build(case)
        want = call.to(device).attend(backend)
        if where == "q":
            call.q[1, 0, :, 5] = torch.nan
        else:
            slot = int(call.main.table[1, 0]) * 32 + 7
            rows = np.arange(len(call.main.k_rows)) == slot
            spoil(getattr(call.main, where)[: len(rows) // 32], case.k, rows)
        got = call.to(device).attend(backend)
        assert same(got, want, [0, 2])
        assert got[0][1].isnan().any(-1).all(), where
        assert got[1][1].isnan().all() or where == "v_blocks"


@by_backend
def test_tensors_may_lie_anywhere_and_stay_as_they_are(backend, device):
    call = build(Case(lens=(70, 40, 33), q_len=2, window=0, group=3), device)
    pools = (
        Pool(_apart(p.k_blocks), _by_head(p.v_blocks), _spread(p.table), p.k_rows, p.v_rows)
        for p in (call.main, call.dense)
    )
    lens = torch.stack([call.lens, call.lens - 99], 1)[:, 0]
    moved = Call(call.case, LAYOUTS["transposed"](call.q), lens, *pools)
    assert [t.is_contiguous() for t in moved.tensors()] == [False] * 8
    before = [t.clone() for t in moved.tensors()]
    check(moved, moved.attend(backend))
    assert all(torch.equal(a, b) for a, b in zip(moved.tensors(), before, strict=True))
    for layout in ("misaligned", "sliced_rows", "every_second"):
        moved = replace(call, q=LAYOUTS[layout](call.q))
        check(moved, moved.attend(backend))


def _apart(blocks):
    """The same blocks with memory full of NaN around each."""
    memory = blocks.new_full((*blocks.shape[:2], blocks.shape[2] + 64), 0xFF)
    memory[..., 32:-32] = blocks
    return memory[..., 32:-32]


def _by_head(blocks):
    """The same blocks, all of one head together."""
    return blocks.transpose(0, 1).contiguous().transpose(0, 1)


def _spread(table):
    return torch.stack([table, table - 99], -1).flatten(1)[:, ::2]


@by_backend
def test_the_order_of_sequences_and_pages_does_not_matter(backend, device):
    case = Case(lens=(70, 0, 130, 33), kv_heads=1, q_len=2, window=32)
    call = build(case)
    want = call.to(device).attend(backend)
    pools = []
    for pool in (call.main, call.dense):
        pages = len(pool.k_blocks)
        order = torch.randperm(pages)  # old pages of new ones
        table = pool.table.clone()
        real = (table >= 0) & (table < pages)
        table[real] = order.argsort().int()[table[real].long()]
        v_blocks = torch.cat([pool.v_blocks[order], pool.v_blocks[pages:]])
        pools.append(replace(pool, k_blocks=pool.k_blocks[order], v_blocks=v_blocks, table=table))
    assert not torch.equal(pools[0].table, call.main.table)
    assert same(Call(case, call.q, call.lens, *pools).to(device).attend(backend), want)
    for rows in ([2, 3, 0, 1], [2], [3, 1]):  # in another order, alone, some of them
        part = Call(
            replace(case, lens=tuple(case.lens[r] for r in rows)),
            *(call.q[rows], call.lens[rows]),
            *(replace(pool, table=pool.table[rows]) for pool in (call.main, call.dense)),
        )
        got = part.to(device).attend(backend)
        check(part, got)
        torch.testing.assert_close(got[0], want[0][rows], rtol=2e-3, atol=2e-3)


@by_backend
def test_one_query_may_come_without_its_dimension(backend, device):
    call = build(Case(), device)
    out, lse = call.attend(backend)
    got = replace(call, q=call.q[:, 0]).attend(backend)
    assert (got[0].shape, got[1].shape) == (call.q[:, 0].shape, call.q[:, 0].shape[:2])
    assert same(got, (out[:, 0], lse[:, 0]))


@by_backend
def test_the_default_scale_is_that_of_the_head_dim(backend, device):
    call = build(Case(BlockFormat(128, 24), BlockFormat(128, 24), kv_heads=1), device)
    named = replace(call, case=replace(call.case, scale=128**-0.5))
    assert same(call.attend(backend), named.attend(backend))


def test_the_oracle_sees_what_it_should():
    """Against torch's own attention, on a cache that loses nothing."""
    fmt = BlockFormat(64, None, "fp32")
    call = build(Case(fmt, fmt, lens=(75,), q_len=3, dtype=F32, dense="fp32", kv_heads=3))
    slots = (call.main.table[0].long()[:3, None] * 32 + torch.arange(32)).flatten()[:75]
    k, v = (torch.from_numpy(x[slots].swapaxes(0, 1)) for x in (call.main.k_rows, call.main.v_rows))
    mask = torch.ones(3, 75).tril(72).bool()
    want = torch.nn.functional.scaled_dot_product_attention(
        call.q[0].transpose(0, 1).double(), k, v, mask, enable_gqa=True
    )
    np.testing.assert_allclose(expected(call)[0][0].swapaxes(0, 1), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("backend", "device"),
    [*RUNS, (None, "cpu"), pytest.param(None, "cuda", marks=pytest.mark.gpu)],
)
def test_compiles_to_one_graph(backend, device):
    torch._dynamo.reset()
    fmt, case = BlockFormat(64, 24), Case(window=32, kv_heads=1)
    call = build(case, device)

    def model(q, k, v, table, lens, *dense):
        window = DenseWindow(*dense, tokens=32)
        out, lse = decode_attention(
            q[:, 0] * 2, k, v, table, lens, fmt, fmt, window=window, softcap=5.0, backend=backend
        )
        return out * 2, lse + 1

    q, lens, k, v, table, *dense = call.tensors()
    args = q, k, v, table, lens, *dense
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert same(compiled(*args), model(*args))


def test_meta_tensors_give_shapes_only():
    case = Case(lens=(5, 6), q_len=2, window=0, dtype=BF16)
    out, lse = build(case).to("meta").attend()
    assert (out.shape, out.dtype, out.device.type) == ((2, 2, 4, 64), BF16, "meta")
    assert (lse.shape, lse.dtype, lse.device.type) == ((2, 2, 4), F32, "meta")
