"""What the papers publish and what we measured, side by side, and where ours is worse."""

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.figures import fusion, stof
from benchmarks.records import Benchmarks
from benchmarks.reports import decode, masked
from benchmarks.reports.claims import committed
from benchmarks.reports.markdown import NOTHING, geometric_mean, table
from benchmarks.suites.decode_cache import DecodeCase, Stored
from gossamer.bench import Record, read_records
from gossamer.bench.peers import defaults

COLUMNS = ["what", "published", "ours, H200", ""]
MASKS = {
    "sliding_window": "stof-sliding",
    "longformer": "stof-longformer",
    "bigbird": "stof-bigbird",
}
SAME = ("GEMM + norm", "GEMM + GEMM")  # pairs that are the same as theirs
HALF, SEVENTY = Stored(64), Stored(40)  # of 128 entries


@dataclass(frozen=True)
class Pair:
    """published: by device. more: whether larger is better."""

    what: str
    published: dict[str, float]
    ours: float | None
    form: str = "{:.2f}x"
    more: bool = True
    note: str = ""
    same: bool = True  # whether ours is the same thing as theirs

    def cells(self) -> list[str]:
        told = ", ".join(
            f"{self.form.format(value)} {f'({device})' if device else ''}".strip()
            for device, value in self.published.items()
        )
        ours = NOTHING if self.ours is None else self.form.format(self.ours)
        return [self.what, told, ours, "; ".join(filter(None, (self.verdict, self.note)))]

    @property
    def verdict(self) -> str:
        """Ours against the best of what is published."""
        if self.ours is None:
            return "ours is not measured"
        if not self.same:
            return "not compared"
        sign = 1 if self.more else -1
        best = max(sign * value for value in self.published.values())
        return "better" if sign * self.ours >= best else "**worse**"


def published_table(found: Benchmarks | None = None) -> str:
    """Every table of theirs that is redone here."""
    found = found or committed()
    pairs = [*_attention(found), *_fused(found), *_models(found), *_mustafar(found)]
    return table(COLUMNS, [pair.cells() for pair in pairs])


def _attention(found: Benchmarks) -> Iterable[Pair]:
    rows = found.table("published/stof_fig09_10.csv")
    ours = masked.over_flex(found.records("masked_attention"))
    for theirs, name in MASKS.items():
        by_device = {}
        for device in stof.DEVICES:
            own = [r for r in rows if r["device"] == device and r["mask"] == theirs]
            made = stof.ratios(own, "method", "STOF", "FlexAttention")
            by_device[device] = geometric_mean(made.values())
        mine = [ratio for key, ratio in ours.items() if key[0] == name]
        yield Pair(
            f"masked attention over FlexAttention, {theirs.replace('_', ' ')}",
            by_device,
            geometric_mean(mine) if mine else None,
            note="theirs over FlexAttention with a denser mask and 128-blocks, ours over its best",
        )


def _fused(found: Benchmarks) -> Iterable[Pair]:
    rows = found.table("published/stof_fig03.csv")
    for name, (op, own_name) in stof.PAIRS.items():
        by_device = {}
        for device in stof.DEVICES:
            own = [r for r in rows if (r["device"], r["operators"]) == (device, name)]
            by_device[device] = geometric_mean(
                stof.ratios(own, "variant", "fused", "separate").values()
            )
        records = found.known(op)
        eager = {r.point: r.median_ms for r in records if r.backend == "eager"}
        mine = [eager[r.point] / r.median_ms for r in defaults(records) if r.point in eager]
        ours = geometric_mean(mine) if mine else None
        same, what = own_name in SAME, f"{name} fused over separate (eager)"
        note = "" if same else f"ours is another pair: {own_name}"
        yield Pair(what, by_device, ours, note=note, same=same)


def _models(found: Benchmarks) -> Iterable[Pair]:
    rows = found.table("published/stof_fig11.csv")
    points = fusion.points(found)
    for batch, tokens in stof.SIZES:
        by_device = {}
        for device in stof.DEVICES:
            point = device, batch, tokens
            own = [r for r in rows if (r["device"], r["batch"], r["tokens"]) == point]
            made = stof.ratios(own, "method", "STOF", "PyTorch-compile")
            by_device[device] = geometric_mean(made.values())
        masks = [ways for own in points.get((int(batch), int(tokens)), {}).values() for ways in own]
        what = f"whole models over torch.compile, {batch} x {int(tokens):,} tokens"
        yield Pair(what, by_device, fusion.ratio(masks, fusion.COMPILED, fusion.BOTH))


def _mustafar(found: Benchmarks) -> Iterable[Pair]:
    rows = found.table("published/mustafar.csv")
    points = decode.Points(found.known("decode_attention"))
    memory = {r["sparsity"]: float(r["value"]) for r in rows if r["what"] == "memory"}
    for sparsity, stored in (("0.5", HALF), ("0.7", SEVENTY)):
        record = points.ours(DecodeCase(8, 8, 4_096, stored))
        ours = None if record is None else 100 / record.facts["byte_limit"]
        what = f"KV bytes at {float(sparsity):.0%} sparsity"
        yield Pair(what, {"": 100 * memory[sparsity]}, ours, "{:.1f}%", more=False)
    (speed,) = (r for r in rows if r["what"] == "speed")
    newer = found.folder / f"comparisons/transformers/{found.device}.jsonl"
    later = _over_hugging_face(read_records(newer)) if newer.is_file() else None
    yield Pair(
        "tokens/s over Hugging Face dense, batch 8",
        {"at most": float(speed["value"])},
        _over_hugging_face(found.known("transformers_cache")),
        note="" if later is None else f"0.1.0's; this version, on a slower host: {later:.2f}x",
    )
    yield from _their_kernels(found, points)


def _over_hugging_face(records: list[Record]) -> float | None:
    """Of the fastest sparse cache in `generate`."""
    dense = [r.median_ms for r in records if r.backend != "gossamer"]
    sparse = [r.median_ms for r in records if "sparse" in r.variant]
    return min(dense) / min(sparse) if dense and sparse else None


def _their_kernels(found: Benchmarks, points: decode.Points) -> Iterable[Pair]:
    """At the shapes that their kernels were timed at."""
    theirs, ours = [], []
    for line in found.table("data/mustafar_decode_h200.csv"):
        shape = int(line["batch"]), int(line["kv_heads"]), int(line["context"])
        best = points.best_peer(DecodeCase(*shape))
        sparse = points.ours(DecodeCase(*shape, SEVENTY))
        if best is not None and sparse is not None:
            theirs.append(best.median_ms / float(line["ms_70"]))
            ours.append(best.median_ms / sparse.median_ms)
    if theirs:
        timed = {"not published: a timing of Mustafar's kernels on an H200": geometric_mean(theirs)}
        what = "decode attention at 70% over the fastest dense one"
        yield Pair(what, timed, geometric_mean(ours))
