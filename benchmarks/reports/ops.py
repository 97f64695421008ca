"""Tables of ops: at the headline shape, by kind (KV, elementwise, GEMM), and the losses."""

from collections.abc import Iterable

from benchmarks.reports.markdown import NOTHING, geometric_mean, ms, shape_of, speed_up, table
from benchmarks.suites.masked_cases import OP as MASKED
from gossamer.bench import Record
from gossamer.bench.peers import Peers, defaults
from gossamer.ops import BACKENDS

HEADLINE = [16, 128, 4096]
HEADLINE_VARIANTS = ("", "approximate=none", "b,c=full")
NOISE = 1.03  # ratios closer to 1 than this are called equal
ELEMENTWISE = (
    "bias_act",
    "element_wise_mul_add",
    "fused_add_gelu",
    "fused_residual_layernorm",
    "fused_residual_rmsnorm",
    "gelu_mul",
    "quantize_fp8",
    "quantize_int8",
    "rmsnorm",
    "rmsnorm_rope",
    "rope",
    "rope_inplace",
    "scaled_softmax",
    "silu_mul",
)
GEMMS = ("linear_act", "linear_norm", "gated_mlp", "gemm_chain", "linear_int8", "linear_fp8")


def headline_table(records: list[Record]) -> str:
    """Per op, dtype and backend: time at the headline shape, bandwidth at the largest."""
    rows = []
    shown = [r for r in records if r.shape == HEADLINE and r.variant in HEADLINE_VARIANTS]
    eager = {r.point: r.median_ms for r in shown if r.backend == "eager"}
    for r in shown:
        if r.backend not in BACKENDS:
            continue
        same = (x for x in records if (x.backend, x.variant) == (r.backend, r.variant))
        largest = max(
            (x for x in same if (x.op, x.dtype) == (r.op, r.dtype)), key=lambda x: x.bytes
        )
        base = eager[r.point]
        times = [f"{base:.3g} ms", f"{r.median_ms:.3g} ms", f"{base / r.median_ms:.2f}x"]
        share = [shape_of(largest), f"{largest.ceiling_share:.0%}"]
        rows.append([f"`{r.op}`", r.dtype, r.backend, *times, *share])
    columns = ["op", "dtype", "backend", "eager", "gossamer", "speed-up", "largest", "of copy"]
    return table(columns, rows)


def kv_table(records: list[Record]) -> str:
    """KV ops at float16: time of the reference in plain torch and of each backend."""
    shown = [r for r in records if r.op.startswith("kv_") and r.dtype == "float16"]
    eager = {r.point: r.median_ms for r in shown if r.backend == "eager"}
    rows = []
    for r in shown:
        if r.backend not in BACKENDS:
            continue
        base = eager[r.point]
        times = [f"{base:.3g} ms", f"{r.median_ms:.3g} ms", f"{base / r.median_ms:.0f}x"]
        rows.append(
            [f"`{r.op}`", shape_of(r), r.variant, r.backend, *times, f"{r.ceiling_share:.0%}"]
        )
    columns = ["op", "rows", "stored", "backend", "plain torch", "gossamer", "speed-up", "of copy"]
    return table(columns, rows)


def loss_table(records: list[Record]) -> str:
    """Points where the backend that users get by default is slower than a peer.

    Without masked attention, of which every line is one of many candidates; see reports/masked.py.
    """
    records = [r for r in records if r.op != MASKED]
    peer_of = Peers(records)
    pairs = [(r, peer) for r in defaults(records) if (peer := peer_of(r)) is not None]
    rows = []
    for r, peer in pairs:
        if r.median_ms > NOISE * peer.median_ms:
            times = [f"{x.backend} {x.median_ms:.3g} ms" for x in (r, peer)]
            ratio = f"{peer.median_ms / r.median_ms:.2f}x"
            rows.append([f"`{r.op}`", shape_of(r), r.dtype, r.variant, *times, ratio])
    if not rows:
        return f"None of {len(pairs)} points."
    head = f"{len(rows)} of {len(pairs)} points:\n\n"
    return head + table(["op", "shape", "dtype", "variant", "ours", "best peer", "speed"], rows)


def fused_table(records: list[Record]) -> str:
    """Per op: lowest and mean speed over two peers, bandwidth at the largest point."""
    rows = []
    for op in ELEMENTWISE:
        own = [r for r in records if r.op == op]
        ours = defaults(own)
        if not ours:
            continue
        largest = max(ours, key=lambda r: r.bytes)
        cells = [
            f"`{op}`",
            str(len(ours)),
            _range(ours, own, "eager"),
            _range(ours, own, "compile"),
        ]
        rows.append(
            [*cells, f"{shape_of(largest)} {largest.dtype}", f"{largest.ceiling_share:.0%}"]
        )
    columns = ["op", "points", "over eager", "over torch.compile", "largest", "of copy"]
    return table(columns, rows)


def gemm_table(records: list[Record]) -> str:
    """Every GEMM in bfloat16 or, on a CPU, float32, next to eager and to the GEMM alone."""
    rows = []
    for op in GEMMS:
        own = [r for r in records if r.op == op]
        for r in defaults(own):
            if r.dtype != ("float32" if r.backend == "cpu" else "bfloat16"):
                continue
            eager = _peer(own, r, "eager")
            cells = [f"`{op}`", shape_of(r), r.variant, r.backend, ms(eager), ms(r)]
            alone = [r.facts.get(name) for name in ("of_product", "at_one_clock")]
            rows.append(
                [*cells, speed_up(r, eager), *(f"{x:.2f}x" if x else NOTHING for x in alone)]
            )
    columns = ["op", "rows x sizes", "variant", "backend", "eager", "gossamer", "speed-up"]
    return table([*columns, "of the GEMM alone", "at one clock"], rows)


def _peer(records: Iterable[Record], ours: Record, name: str) -> Record | None:
    return next((r for r in records if r.backend == name and r.point == ours.point), None)


def _range(ours: Iterable[Record], records: list[Record], name: str) -> str:
    """Lowest ratio and geometric mean."""
    peers = ((r, _peer(records, r, name)) for r in ours)
    ratios = [p.median_ms / r.median_ms for r, p in peers if p is not None]
    if not ratios:
        return NOTHING
    return f"{min(ratios):.2f}x, mean {geometric_mean(ratios):.2f}x"
