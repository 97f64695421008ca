"""Tables of the fused ops: elementwise ones beside eager and torch.compile, and products."""

import math
from collections.abc import Iterable

from benchmarks.markdown import NOTHING, ms, shape_of, speed_up, table
from gossamer.bench import Record
from gossamer.ops import BACKENDS
from gossamer.ops.backends import PREFERENCE

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
PRODUCTS = ("linear_act", "linear_norm", "gated_mlp", "gemm_chain", "linear_int8", "linear_fp8")


def defaults(records: Iterable[Record]) -> list[Record]:
    """At every point the record of the backend that users get."""
    found: dict[object, Record] = {}
    for r in records:
        if r.backend in BACKENDS:
            known = found.get(r.point, r)
            found[r.point] = min(known, r, key=lambda x: PREFERENCE[_kind(x)].index(x.backend))
    return list(found.values())


def fused_table(records: list[Record]) -> str:
    """Per op: lowest and mean speed beside two peers, bandwidth at the largest point."""
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


def products_table(records: list[Record]) -> str:
    """Every product in bfloat16 or, on a CPU, float32, beside eager and the product alone."""
    rows = []
    for op in PRODUCTS:
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
    return table([*columns, "of the product alone", "at one clock"], rows)


def _kind(record: Record) -> str:
    return "cpu" if record.backend == "cpu" else "cuda"


def _peer(records: Iterable[Record], ours: Record, name: str) -> Record | None:
    return next((r for r in records if r.backend == name and r.point == ours.point), None)


def _range(ours: Iterable[Record], records: list[Record], name: str) -> str:
    """Lowest ratio and geometric mean."""
    peers = ((r, _peer(records, r, name)) for r in ours)
    ratios = [p.median_ms / r.median_ms for r, p in peers if p is not None]
    if not ratios:
        return NOTHING
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return f"{min(ratios):.2f}x, mean {mean:.2f}x"
