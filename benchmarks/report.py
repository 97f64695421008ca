"""The tables in the README and in docs/benchmarks.md, made from the committed result files."""

from collections.abc import Callable
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.decode_report import CPU_TABLES, GPU_TABLES
from benchmarks.engine_report import engine
from benchmarks.markdown import shape_of, table
from benchmarks.masked_regret import OP as MASKED
from benchmarks.masked_report import headline as masked_table
from benchmarks.masked_report import host as host_table
from benchmarks.masked_report import regret as regret_table
from benchmarks.ops_report import fused_table, products_table
from benchmarks.quality_report import chosen_table, peer_table, quality_table
from benchmarks.transformers_report import transformers_table
from gossamer.bench import Record, read_records
from gossamer.bench.peers import Peers
from gossamer.bench.suite import RESULTS
from gossamer.ops import BACKENDS
from gossamer.ops.backends import PREFERENCE

HEADLINE = [16, 128, 4096]
HEADLINE_VARIANTS = ("", "approximate=none", "b,c=full")
NOISE = 1.03  # ratios closer to 1 than this are called equal
PAGES = (
    "README.md",
    "docs/benchmarks.md",
    "docs/evaluation.md",
    "docs/kv-cache.md",
    "docs/masked-attention.md",
    "docs/transformers.md",
)

Point = tuple[str, str, tuple[int, ...], str]


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

    Without masked attention, of which every line is one of many candidates; see masked_report.
    """
    records = [r for r in records if r.op != MASKED]
    order = PREFERENCE["cuda" if any(r.backend == "cuda" for r in records) else "cpu"]
    peer_of = Peers(records)
    ours: dict[Point, Record] = {}
    for r in records:
        if r.backend in BACKENDS and peer_of(r) is not None:
            point = r.point
            ours[point] = min(ours.get(point, r), r, key=lambda x: order.index(x.backend))
    rows = []
    for r in ours.values():
        peer = peer_of(r)
        if peer is not None and r.median_ms > NOISE * peer.median_ms:
            times = [f"{x.backend} {x.median_ms:.3g} ms" for x in (r, peer)]
            ratio = f"{peer.median_ms / r.median_ms:.2f}x"
            rows.append([f"`{r.op}`", shape_of(r), r.dtype, r.variant, *times, ratio])
    if not rows:
        return f"None of {len(ours)} points."
    head = f"{len(rows)} of {len(ours)} points:\n\n"
    return head + table(["op", "shape", "dtype", "variant", "ours", "best peer", "speed"], rows)


def by_device(
    make: Callable[[list[Record]], str],
    results: Path = RESULTS,
    *,
    files: str = "*",
    gpu: bool | None = None,
) -> str:
    """`make` of each device's records, under the device's name.

    files: the op whose run the heading describes. gpu: only GPUs, or none.
    """
    parts = []
    for folder in sorted(f for f in results.iterdir() if f.is_dir()):
        found = {f.stem: read_records(f) for f in sorted(folder.glob("*.jsonl"))}
        records = [r for lines in found.values() for r in lines]
        on_gpu = any(r.backend in ("cuda", "triton") for r in records)
        if records and gpu in (None, on_gpu):
            described = [r for op, lines in found.items() if fnmatch(op, files) for r in lines]
            first = (described or records)[0]
            software = ", ".join(f"{k} {v}" for k, v in first.versions.items())
            heading = f"**{first.device}** (copy {first.ceiling_gbps:.0f} GB/s; {software})"
            parts.append(f"{heading}\n\n{make(records)}")
    return "\n\n".join(parts)


def updated(page: str, results: Path = RESULTS) -> str:
    """The page with fresh tables between its markers <!-- headline --> and <!-- /headline -->."""
    tables: dict[str, Callable[[], str]] = {
        "headline": partial(by_device, headline_table, results, files="fused_*"),
        "fused": partial(by_device, fused_table, results, files="*rmsnorm"),
        "products": partial(by_device, products_table, results, files="linear_*"),
        "losses": partial(by_device, loss_table, results),
        "kv": partial(by_device, kv_table, results, files="kv_*"),
        "quality": quality_table,
        "chosen": chosen_table,
        "peers": peer_table,
        "engine": partial(by_device, engine, results, files="engine_*"),
        "transformers": partial(
            by_device, transformers_table, results, files="transformers_*", gpu=True
        ),
    }
    masked = partial(by_device, results=results, files="masked_*", gpu=True)
    for name, make in (("masked", masked_table), ("regret", regret_table), ("host", host_table)):
        tables[name] = partial(masked, make)
    decode = partial(by_device, results=results, files="decode_attention")
    tables |= {name: partial(decode, make, gpu=True) for name, make in GPU_TABLES.items()}
    tables |= {name: partial(decode, make, gpu=False) for name, make in CPU_TABLES.items()}
    for name, made in tables.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if start in page:
            before, _, rest = page.partition(start)
            page = f"{before}{start}\n{made()}\n{end}{rest.partition(end)[2]}"
    return page


def main(
    results: Annotated[Path, typer.Option(help="folder of the result files")] = RESULTS,
    write: Annotated[bool, typer.Option("--write", help="update the pages")] = False,
) -> None:
    """Print the headline tables, or update the pages that show tables."""
    if not write:
        for name in ("headline", "kv", "decode"):
            typer.echo(updated(f"<!-- {name} --><!-- /{name} -->", results))
        return
    for path in map(Path, PAGES):
        path.write_text(updated(path.read_text(), results))


if __name__ == "__main__":
    typer.run(main)
