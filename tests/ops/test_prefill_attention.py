"""prefill_attention: what a query sees, the plan, and every backend against a float64 oracle."""

import itertools
import math
import random
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from gossamer.kv.rule import CacheRule
from gossamer.masks import Sliding
from gossamer.ops import OPS, PrefillPlan, prefill_attention
from gossamer.ops.prefill_reference import far_positions, keys_of, near_positions, visible
from tests.ops.prefill_errors import BAD_CALLS, BAD_VALUES
from tests.ops.spec import runs

__all__ = ["BAD_CALLS", "BAD_VALUES"]  # which the contract tests look up here

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Of the largest values: weights and results rounded to the dtype.
TOLERANCE = {F32: 1e-5, F16: 1e-3, BF16: 8e-3}
RUNS = [run.values[1:] for run in runs("prefill_attention")]
CUDA = ("cuda", "cuda")
NAN = float("nan")


def dense_mask(chunk: tuple[int, int], window: int | None, sink: int, sliding: int) -> Tensor:
    """bool [queries, far and near keys] of (queries, start), of the rule that caches follow."""
    queries, start = chunk
    plain = window is None
    rule = CacheRule((window or 0) // 32, 0 if plain else sink // 32, plain)
    mask = rule.chunk(start, start + queries)
    if sliding:
        mask = replace(mask, within=mask.within & Sliding.causal(sliding - 1))
    near = mask.lengths[1] - len(mask.far)
    assert keys_of(queries, start, window, sink) == (near, mask.edge, len(mask.far))
    return mask.dense(*mask.lengths, "cpu").reshape(mask.lengths)


@dataclass(frozen=True, eq=False)
class Case:
    """Random inputs for chunks (queries, start); q, k and v are parts of wider rows full of NaN."""

    chunks: list[tuple[int, int]]
    dtype: torch.dtype = F32
    device: str = "cpu"
    heads: tuple[int, int] = (2, 1)
    dims: int = 64
    window: int | None = None
    sink: int = 0
    sliding: int = 0
    scale: float | None = None
    inputs: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows = self.plan.rows
        (heads, kv_heads), far = self.heads, kv_heads_or_one(rows[2])
        sizes = ((rows[0], heads), (rows[1], kv_heads), (rows[1], kv_heads))
        sizes += ((far, kv_heads), (far, kv_heads))
        self.inputs.extend(self._rows(*size) for size in sizes)

    def _rows(self, rows: int, heads: int) -> Tensor:
        """Among rows and heads of NaN."""
        size = (rows + 200, heads + 1, self.dims + 8)
        memory = torch.full(size, NAN, dtype=self.dtype, device=self.device)
        view = memory[:rows, 1:, : self.dims]
        view.copy_(torch.randn(view.shape, device=self.device))
        return view

    @property
    def plan(self) -> PrefillPlan:
        return PrefillPlan.under(self.chunks, self.window, self.sink, self.device)

    def run(self, backend: str | None, **changes: object) -> Tensor:
        q, k, v, *far = self.inputs
        rule = {"window": self.window, "sink": self.sink, "sliding": self.sliding}
        options = rule | {"scale": self.scale, "far": tuple(far)} | changes
        return prefill_attention(q, k, v, self.plan, backend=backend, **options)

    def expected(self) -> Tensor:
        q, k, v, far_k, far_v = (x.double().cpu() for x in self.inputs)
        group = self.heads[0] // self.heads[1]
        out, query, near, far = torch.zeros_like(q), 0, 0, 0
        for queries, start in self.chunks:
            near_rows, _, far_rows = keys_of(queries, start, self.window, self.sink)
            seen = dense_mask((queries, start), self.window, self.sink, self.sliding)
            keys, values = (
                torch.cat((a[far : far + far_rows], b[near : near + near_rows]))
                for a, b in ((far_k, k), (far_v, v))
            )
            keys, values = (x.repeat_interleave(group, 1) for x in (keys, values))
            scores = torch.einsum("qhd,khd->hqk", q[query : query + queries], keys)
            scores *= self.scale or self.dims**-0.5
            weights = scores.masked_fill_(~seen, -math.inf).softmax(-1)
            out[query : query + queries] = torch.einsum("hqk,khd->qhd", weights, values)
            query, near, far = query + queries, near + near_rows, far + far_rows
        return out

    def check(self, backend: str | None) -> None:
        poison = torch.full_like(self.inputs[0], NAN, memory_format=torch.contiguous_format)
        del poison  # its memory is what results are likely written to
        got, want = self.run(backend), self.expected()
        assert got.is_contiguous()
        error = (got.double().cpu() - want).abs()
        assert not error.isnan().any()
        assert error.max() <= TOLERANCE[self.dtype] * want.abs().max(), int(error.argmax())


def kv_heads_or_one(rows: int) -> int:
    """Tensors of no rows have no address."""
    return max(rows, 1)


by_backend = pytest.mark.parametrize(
    ("backend", "device"),
    [pytest.param(b, d, marks=pytest.mark.gpu if d == "cuda" else []) for b, d in RUNS],
)


def dtypes(backend: str) -> tuple[torch.dtype, ...]:
    return (F16, BF16) if backend == "cuda" else (F32, F16, BF16)


def test_the_rule_is_that_of_caches():
    """Random chunks; the dense mask of ChunkMask is what the reference shows."""
    for _ in range(200):
        queries, start = random.choice([1, 31, 32, 100, 300]), random.choice([0, 1, 32, 100, 500])
        window = random.choice([None, 0, 32, 64, 256])
        sink, sliding = random.choice([0, 32, 64, 160]), random.choice([0, 1, 40, 300])
        near, edge, _ = keys_of(queries, start, window, sink)
        number, cpu = -1 if window is None else window, torch.device("cpu")
        got = visible(
            torch.arange(start, start + queries),
            far_positions(start + queries, number, sink, cpu),
            near_positions(near, edge, sink, cpu),
            *(number, sink, sliding),
        )
        want = dense_mask((queries, start), window, sink, sliding)
        assert torch.equal(got, want), (queries, start, window, sink, sliding)


def test_a_plan_places_chunks_one_after_the_other():
    chunks = [(300, 0), (1, 900), (129, 10)]
    plan = PrefillPlan.under(chunks, 64, 32, "cpu")
    near, edges, far = zip(*(keys_of(*chunk, 64, 32) for chunk in chunks), strict=True)
    assert (near, edges, far) == ((300, 101, 139), (0, 832, 0), (192, 800, 32))
    assert plan.sequences.T.tolist() == [
        *([0, 300, 301], [300, 1, 129], [0, 900, 10]),
        *([0, 300, 401], list(near), list(edges), [0, 192, 992]),
    ]
    assert plan.rows == (430, 540, 1024)
    # From the last position that a tile sees down.
    assert plan.tiles.tolist() == [[1, 0], [0, 2], [0, 1], [2, 1], [2, 0], [0, 0]]
    assert PrefillPlan.under([], None, 0, "cpu").tiles.shape == (0, 2)


@by_backend
@pytest.mark.parametrize("dims", [64, 128])
@pytest.mark.parametrize("heads", [(1, 1), (4, 1), (8, 2), (14, 2)], ids=str)
def test_heads(backend, device, heads, dims):
    for dtype in dtypes(backend):
        Case([(70, 0), (33, 5)], dtype, device, heads, dims).check(backend)


@by_backend
def test_lengths(backend, device):
    lengths = [1, 2, 31, 63, 64, 65, 127, 128, 129, 200, 255, 257]
    if device == "cuda":
        lengths += [1000, 2047, 4000]
    for length, start in itertools.product(lengths, (0, 1, 127, 128, 500)):
        Case([(length, start)], dtypes(backend)[-1], device).check(backend)
    Case([(n, 0) for n in lengths], F16, device).check(backend)
    Case([(n, 7 * n) for n in lengths], F16, device).check(backend)


@by_backend
@pytest.mark.parametrize("window", [0, 32, 128, 512])
@pytest.mark.parametrize("sink", [0, 32, 128, 160])
def test_windows_and_far_keys(backend, device, window, sink):
    for chunks in ([(300, 0)], [(130, 777)], [(1, 64), (257, 40), (64, 1000)]):
        Case(chunks, F16, device, window=window, sink=sink).check(backend)


@by_backend
@pytest.mark.parametrize("sliding", [1, 30, 128, 200, 5000])
def test_sliding(backend, device, sliding):
    for rule in ({}, {"window": 64, "sink": 32}, {"window": 0, "sink": 256}):
        Case([(290, 0), (40, 333)], BF16, device, sliding=sliding, **rule).check(backend)


@by_backend
def test_random_cases(backend, device):
    rng = random.Random(torch.initial_seed())
    for _ in range(100 if device == "cuda" else 10):
        chunks = [(rng.randint(1, 400), rng.randint(0, 900)) for _ in range(rng.randint(1, 4))]
        window = rng.choice([None, 0, 32, 96, 256])
        case = Case(
            *(chunks, rng.choice(dtypes(backend)), device),
            dims=rng.choice([64, 128]),
            window=window,
            sink=32 * rng.randint(0, 6),
            sliding=rng.choice([0, 0, 1, 77, 600]),
            scale=rng.choice([None, 0.3]),
        )
        case.check(backend)


@by_backend
def test_large_scores(backend, device):
    """Maxima that rise by far more than the slack, in both directions of time."""
    for ends in ((0.1, 20), (20, 0.1)):
        case = Case([(520, 100)], F16, device)
        case.inputs[1].mul_(torch.linspace(*ends, 620, device=device)[:, None, None])
        case.check(backend)


@by_backend
def test_no_queries(backend, device):
    plan = PrefillPlan.under([], None, 0, device)
    rows = torch.zeros(0, 2, 64, dtype=F16, device=device)
    assert prefill_attention(rows, rows, rows, plan, backend=backend).shape == (0, 2, 64)


def test_rows_must_be_those_of_the_plan():
    case = Case([(5, 0)])
    with pytest.raises(ValueError, match="there are 4 queries, 5 near keys and 1 far keys; must"):
        prefill_attention(case.inputs[0][:4], *case.inputs[1:3], case.plan, tuple(case.inputs[3:]))


@pytest.mark.gpu
def test_unsuited_calls_go_to_the_reference():
    for case in (Case([(40, 0)], F32, "cuda"), Case([(40, 0)], F16, "cuda", dims=80)):
        case.check(None)
        with pytest.raises(RuntimeError, match="the CUDA kernel takes fp16 and bf16, head_dim 64"):
            case.run("cuda")


@pytest.mark.gpu
def test_replays_in_a_cuda_graph():
    case = Case([(300, 0), (77, 400)], BF16, "cuda", window=64, sink=32)
    want = case.run("cuda")
    graph = torch.cuda.CUDAGraph()
    plan, (q, k, v, *far) = case.plan, case.inputs
    with torch.cuda.graph(graph):
        got = prefill_attention(q, k, v, plan, tuple(far), window=64, sink=32, backend="cuda")
    got.fill_(NAN)
    graph.replay()
    assert torch.equal(got, want)


@pytest.mark.gpu
def test_the_same_bits_every_time():
    case = Case([(n, 0) for n in (1000, 3, 2048, 500)], BF16, "cuda", (32, 8), 128)
    want = case.run("cuda")
    assert all(torch.equal(case.run("cuda"), want) for _ in range(20))


def test_the_op_has_no_kernel_on_a_cpu():
    assert OPS["prefill_attention"].available("cpu") == ("reference",)
