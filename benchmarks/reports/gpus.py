"""The files of `gossamer/planning/gpus`: what a GPU does, made of its committed results.

    python -m benchmarks.reports.gpus --write

Kernel curves are measured as they are. Four constants of the engine are fitted, each to one run of
the revision FITTED_AT; `FITTED` names them, and all other runs are there to check the planner.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.reports.engine_points import LOAD, PROMPTS, STEP, Point, loads
from benchmarks.suites.decode_cache import DecodeCase
from benchmarks.suites.decode_cases import cuda_cases
from benchmarks.suites.decode_codes import points as code_cases
from benchmarks.suites.gemm_cases import LLAMA_8B
from gossamer.bench import Record, read_records
from gossamer.bench.suite import RESULTS
from gossamer.ops.checks import dtype_name
from gossamer.ops.kv_block import BLOCK_TOKENS
from gossamer.planning.gpu import (
    GPU,
    SHIPPED,
    Curve,
    DataSheet,
    DecodeCurve,
    EngineFacts,
    layout_name,
)

# Not the newest: what later engines take was predicted by someone who could not know it.
FITTED_AT = "54d23ff"
# The run that each constant is fitted to: model, cache, what, where.
FITTED = {
    "prompt_flops": ("llama-3-8b", "dense", PROMPTS, "32 x 2,048"),
    "layer_seconds": ("llama-3-8b", "dense", STEP, "32 x 2,048"),
    "item_seconds": (
        *("llama-3-8b", "k=coded:8x16+4x80+2x32@row,v=coded:4x32+3x64+2x32@row"),
        *(STEP, "32 x 8,000"),
    ),
    "token_seconds": ("llama-135m", "dense", LOAD, "small"),
}
NOTHING = EngineFacts("", "", prompt_flops=1e15, layer_seconds=0, item_seconds=0, token_seconds=0)
SHAPED_LIKE = 128  # the head dimension whose curves have several points
H200 = DataSheet(memory=141e9, bandwidth=4.8e12, flops=989e12, link=450e9)


def fitted(point: Point) -> bool:
    """Whether a constant comes from this run."""
    run = (point.model, point.kv, point.what, point.place)
    return point.revision == FITTED_AT and run in FITTED.values()


def later(point: Point) -> bool:
    """Whether it was measured after the constants were fitted: loads are in order of time."""
    revisions = list(dict.fromkeys(p.revision for p in loads()))
    return point.revision in revisions[revisions.index(FITTED_AT) + 1 :]


def h200(results: Path = RESULTS) -> GPU:
    folder = results / "nvidia-h200"
    gemms = read_records(folder / "gated_mlp.jsonl")
    gpu = GPU(
        name=gemms[0].device,
        sheet=H200,
        copy=1e9 * gemms[0].ceiling_gbps,
        gemm=_gemm(gemms),
        decode=tuple(_decode(folder)),
        engine=NOTHING,
    )
    return replace(gpu, engine=_engine(gpu))


def _gemm(records: Iterable[Record]) -> Curve:
    """Seconds for 10^9 weights, by rows: those of an MLP of Llama 3 8B."""
    hidden, inner = LLAMA_8B
    found = {
        float(r.shape[0]): r.median_ms / 1e3 / (3 * hidden * inner) * 1e9
        for r in records
        if r.backend == "cuda" and tuple(r.shape[1:]) == LLAMA_8B and r.dtype == "bfloat16"
    }
    return _curve((rows, [seconds]) for rows, seconds in found.items())


def _decode(folder: Path) -> Iterator[DecodeCurve]:
    """One for each layout and head dimension.

    Where a head dimension has a single point, its curve is one of SHAPED_LIKE through that point.
    """
    times = _decode_times(folder)
    shapes = {
        row: _curve(found.items())
        for (_, dim, row), found in times.items()
        if dim == SHAPED_LIKE and len(found) > 1
    }
    for (layout, dim, row), found in times.items():
        curve = _curve(found.items()) if len(found) > 1 else None
        if curve is None:
            ((size, (seconds, *_)),) = found.items()
            like = shapes[min(shapes, key=lambda other: abs(other / SHAPED_LIKE - row / dim))]
            like = like.times(seconds / like.at(size))
            curve = _curve((x, [y]) for x, y in like.points)
        yield DecodeCurve(layout, dim, row, curve)


def _decode_times(folder: Path) -> dict[tuple[str, int, float], dict[float, list[float]]]:
    """Seconds by the bytes of a call; of each layout, head dimension and bytes of its rows."""
    times = {
        (tuple(r.shape), r.dtype, r.variant): r.median_ms / 1e3
        for name in ("decode_attention", "decode_codes")
        for r in read_records(folder / f"{name}.jsonl")
        if r.backend == "cuda"
    }
    found: dict[tuple[str, int, float], dict[float, list[float]]] = {}
    for case in filter(_plain, dict.fromkeys((*cuda_cases(), *code_cases()))):
        seconds = times.get((case.shape, dtype_name(case.dtype), case.variant))
        if seconds is not None:
            row = sum(fmt.nbytes for fmt in case.formats) / BLOCK_TOKENS
            size = row * case.batch * case.kv_heads * case.context
            key = (layout_name(*case.formats), case.head_dim, row)
            found.setdefault(key, {}).setdefault(size, []).append(seconds)
    return found


def _plain(case: DecodeCase) -> bool:
    return not (case.window or case.lengths or case.note or case.graph)


def _curve(found: Iterable[tuple[float, list[float]]]) -> Curve:
    """Through the means at each size; noise does not make it fall."""
    sizes, seconds, most = list[float](), list[float](), 0.0
    for size, times in sorted(found):
        most = max(most, sum(times) / len(times))
        sizes.append(size)
        seconds.append(_rounded(most))
    return Curve(tuple(sizes), tuple(seconds))


def _engine(gpu: GPU) -> EngineFacts:
    """Of the revision FITTED_AT."""
    fitted_to = [p for p in loads() if p.revision == FITTED_AT]
    runs = {
        name: next(p for p in fitted_to if (p.model, p.kv, p.what, p.place) == run)
        for name, run in FITTED.items()
    }
    text = "; ".join(f"{p.model} {p.kv}, {p.what} of {p.place}" for p in runs.values())
    facts = replace(NOTHING, revision=FITTED_AT, fitted=text)
    prompts = runs["prompt_flops"]
    facts = replace(facts, prompt_flops=_rounded(_flops(prompts, gpu) / prompts.seconds))
    plain, coded = runs["layer_seconds"], runs["item_seconds"]
    model = plain.model_on(replace(gpu, engine=facts))
    layer = (plain.seconds - model.time(plain.work).gpu) / model.model.layers
    facts = replace(facts, layer_seconds=_rounded(layer))
    model = coded.model_on(replace(gpu, engine=facts))
    items = model.model.layers * coded.sequences * model.model.kv_heads
    item = (coded.seconds - model.time(coded.work).gpu) / items
    small = runs["token_seconds"]
    token = small.seconds / sum(arrival.output for arrival in small.arrivals)
    return replace(facts, item_seconds=_rounded(item), token_seconds=_rounded(token))


def _flops(point: Point, gpu: GPU) -> float:
    """Of prompts: GEMMs and attention."""
    model, n = point.model_on(gpu), point.context
    attention = 4 * model.model.layers * model.model.query_heads * model.model.head_dim
    return point.sequences * (n * model.prompt_token_flops + attention * n * (n + 1) / 2)


def _rounded(value: float) -> float:
    """More digits would be noise in a committed file."""
    return float(f"{value:.4g}")


def main(
    write: Annotated[bool, typer.Option("--write", help="replace the shipped files")] = False,
) -> None:
    """Print what is made of the results, or write it."""
    text = h200().to_json()
    if write:
        (SHIPPED / "h200.json").write_text(text)
    else:
        typer.echo(text)


if __name__ == "__main__":
    typer.run(main)
