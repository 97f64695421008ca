"""Masks, and attention under them: the gallery, what STOF published, ours."""

import math
from collections.abc import Callable
from typing import Any

from benchmarks.figures import stof
from benchmarks.figures.chart import Axis, Chart, Panel, Picture, Row, Series
from benchmarks.figures.render import heading
from benchmarks.records import Benchmarks, MissingRecordsError, is_gpu
from benchmarks.reports.masked import Key, Points
from benchmarks.suites.masked_cases import STOF
from gossamer import plotting
from gossamer.bench import Record
from gossamer.masks import TileMap, drawing, named
from gossamer.ops import BACKENDS

FILES = ("masked_attention", "masked_attention_shapes")
GALLERY = (
    *("causal", *STOF, "bigbird"),
    *("strided", "streaming", "documents", "prefix-lm"),
)
GALLERY_N, GALLERY_STEP = 1024, 4
TITLES = {
    "causal": "causal",
    "sliding_window": "sliding window",
    "longformer": "Longformer",
    "bigbird": "BigBird",
}
METHODS = (
    *("PyTorch-native", "FlashAttention2", "FlexAttention"),
    *("ByteTransformer", "MCFuser", "SPLAT", "STOF"),
)
TOKENS, MILLISECONDS = Axis("tokens", "log"), Axis("milliseconds", "log")
FLEX, SDPA = "FlexAttention, its fastest setting", "SDPA, its fastest backend"
OURS = ("gossamer", "gossamer, as its selector chooses")  # without and with coefficients


# ---- the gallery ---------------------------------------------------------------------------------


CLOSE_UP = 24  # queries and keys
CLOSE = ("stof-sliding", "stof-dilated")  # masks that differ from each other only close up


class Gallery(Picture):
    """Small drawings of masks."""

    def draw(self, figure: Any) -> None:
        columns = 5
        grid = figure.subplots(-(-len(GALLERY) // columns), columns)
        for axes, name in zip(grid.flat, GALLERY, strict=True):
            tiles = _tiles(name)
            drawing.image(axes, tiles, GALLERY_STEP)
            axes.grid(visible=False)
            axes.set_xticks([])
            axes.set_yticks([])
            if name in CLOSE:
                _close_up(axes, tiles)
            axes.set_title(f"{name}\n{tiles.counts().density:.1%} of all pairs", fontsize=8)
        for axes in grid[-1]:
            axes.set_xlabel("keys", fontsize=8)
        for axes in grid[:, 0]:
            axes.set_ylabel("queries", fontsize=8)
        patches = plotting.module("matplotlib.patches")
        names = {
            name: patches.Patch(facecolor=color, edgecolor=plotting.EDGE)
            for name, color in drawing.COLORS.items()
        }
        heading(figure, self.title, names, self.size[0])


def _close_up(axes: Any, tiles: TileMap) -> None:
    """Pairs in the middle of the mask, one by one, in the corner that is empty."""
    start = GALLERY_N // 2
    part = slice(start, start + CLOSE_UP)
    inset = axes.inset_axes((0.53, 0.53, 0.45, 0.45))
    colors = plotting.module("matplotlib.colors").ListedColormap(
        [drawing.COLORS["partial tile, off"], drawing.COLORS["partial tile, on"]]
    )
    inset.imshow(tiles.dense()[0, 0][part, part], cmap=colors, interpolation="nearest")
    inset.set_xticks([])
    inset.set_yticks([])
    inset.grid(visible=False)


def _tiles(name: str) -> TileMap:
    return TileMap.build(named(name, GALLERY_N), GALLERY_N, GALLERY_N, (64, 64))


def gallery(_: Benchmarks) -> Picture:
    """Masks that are built in, those that STOF measured among them."""
    rows: list[Row] = []
    for name in GALLERY:
        counts = _tiles(name).counts()
        values = {"density": counts.density, "full": counts.full, "partial": counts.partial}
        rows += [{"panel": name, "series": k, "x": GALLERY_N, "y": v} for k, v in values.items()]
    note = (
        f"{GALLERY_N:,} queries down, as many keys to the right, tiles of 64 x 64; squares in "
        f"corners are {CLOSE_UP} x {CLOSE_UP} pairs from the middle. Full tiles "
        "need no mask, "
        "empty ones are never read. Names are those of `gossamer masks list` and of the benchmark "
        "(stof-)."
    )
    return Gallery(f"Masks of {GALLERY_N:,} tokens", note, (9.6, 4.6), rows)


# ---- figures 9 and 10 ----------------------------------------------------------------------------


def published(device: str) -> Any:
    """What STOF published of one GPU."""

    def chart(found: Benchmarks) -> Chart:
        rows = [r for r in found.table("published/stof_fig09_10.csv") if r["device"] == device]
        panels = []
        for mask, title in TITLES.items():
            for batch in ("1", "8", "16"):
                own = [r for r in rows if r["batch"] == batch and r["mask"] in (mask, "any")]
                series = [_line(own, method, n) for n, method in enumerate(METHODS)]
                where = stof.SOURCE.format(device)
                panels.append(
                    Panel(f"{title}, batch {batch}", TOKENS, MILLISECONDS, tuple(series), where)
                )
        note = (
            "12 heads of 64, fp16. MCFuser and SPLAT ran under one mask and are shown for all, as "
            "in the paper. "
            "FlexAttention ran other, denser masks than STOF, except for the causal one."
        )
        return Chart(f"Masked attention, as STOF published it: {device}", tuple(panels), 3, note)

    return chart


def _line(rows: list[dict[str, str]], method: str, color: int) -> Series:
    own = sorted((int(r["tokens"]), float(r["ms"])) for r in rows if r["method"] == method)
    x, y = zip(*own, strict=True) if own else ((), ())
    return Series(method, tuple(map(float, x)), tuple(y), color=color)


# ---- ours ----------------------------------------------------------------------------------------


def attention(found: Benchmarks) -> Chart:
    """Time over lengths: what the selector takes, FlexAttention at its best, SDPA."""
    records = _records(found)
    points, selects = Points(records), is_gpu(found.device)
    panels = []
    for batch in (1, 8, 16):
        for mask in ("causal", *STOF):
            own = {k: k[1][2] for k in points.records if _is(k, mask, batch)}
            series = (
                _line_of(own, lambda key: points.peer(key, "flex"), FLEX, 2),
                _line_of(own, lambda key: points.peer(key, "sdpa"), SDPA, 0),
                _line_of(own, lambda key: _chosen(points, key, selects), OURS[selects], 1),
            )
            title = f"{mask.removeprefix('stof-')}, batch {batch}"
            shown = tuple(s for s in series if s.x)
            if shown:
                panels.append(Panel(title, TOKENS, MILLISECONDS, shown))
    note = (
        f"{found.name}, 12 heads of 64, {records[0].dtype}, every peer with the same mask: SDPA "
        "has it as a tensor, on a GPU the causal one by a flag. A peer's line has the lengths and "
        "batches that it was timed at."
    )
    return Chart("Masked attention: ours", tuple(panels), 5, note, (2.7, 2.4))


def _records(found: Benchmarks) -> list[Record]:
    records = found.known(*FILES)
    if not records:
        raise MissingRecordsError(
            f"no records of masked attention on {found.device}; "
            "`python -m benchmarks.suites.masked_attention` on a GPU makes them"
        )
    return records


def _is(key: Key, mask: str, batch: int) -> bool:
    name, (own_batch, _, _, head_dim) = key[0], key[1]
    return (name, own_batch, head_dim) == (mask, batch, 64)


def _line_of(
    own: dict[Key, int], time: Callable[[Key], Record | None], name: str, color: int
) -> Series:
    """Milliseconds over tokens, of the points that have a time."""
    found = sorted((n, r.median_ms) for key, n in own.items() if (r := time(key)) is not None)
    x, y = zip(*found, strict=True) if found else ((), ())
    return Series(name, tuple(map(float, x)), tuple(y), color=color)


def _chosen(points: Points, key: Key, selects: bool) -> Record | None:
    """What the selector takes by a GPU's coefficients; elsewhere our fastest backend."""
    if selects and (chosen := points.ours(key)) is not None:
        return chosen[0]
    plain = [r for r in points.records[key] if r.backend in BACKENDS]
    return min(plain, key=lambda r: r.median_ms, default=None)


# ---- figure 4: configurations --------------------------------------------------------------------

FROM = (1, 1024)  # batch and tokens where the reused configuration is the fastest
TO = ((1, 4096), (16, 1024), (16, 4096))


def reuse(found: Benchmarks) -> Chart:
    """Configurations of one place in another, against those that are the fastest there."""
    rows = found.table("published/stof_fig04.csv")
    panels = stof.pair_panels(rows, "re-tuned", "reused", "reused / re-tuned time")
    times = _candidates(found.known(*FILES))
    for batch, tokens in TO:
        x, y = [], []
        for mask in STOF:
            here, there = times.get((mask, *FROM), {}), times.get((mask, batch, tokens), {})
            both = here.keys() & there.keys()
            if both:
                reused = min(both, key=lambda name: here[name])
                x.append(mask.removeprefix("stof-"))
                y.append(there[reused] / min(there.values()))
        series = (Series("ours: masked attention", tuple(x), tuple(y), "bars", color=2),)
        title = f"{batch} x {tokens:,} tokens: ours"
        axis = Axis("reused / re-tuned time", "log")
        if x:
            panels.append(Panel(title, Axis("mask"), axis, series, one=True))
    note = (
        "Above 1: tuning again wins. STOF: configurations of single operators reused after fusion. "
        f"Ours ({found.name}): kernel and tile size of masked attention that are the fastest at "
        f"{FROM[0]} x {FROM[1]:,} tokens, used elsewhere."
    )
    return Chart("Reused against re-tuned configurations", tuple(panels), 3, note)


def _candidates(records: list[Record]) -> dict[tuple[str, int, int], dict[str, float]]:
    """Milliseconds by point and candidate, heads of 64."""
    times: dict[tuple[str, int, int], dict[str, float]] = {}
    for record in records:
        mask, _, name = record.variant.partition(" candidate=")
        batch, _, tokens, head_dim = record.shape
        if name and head_dim == 64:
            place = mask.removeprefix("mask="), batch, tokens
            own = times.setdefault(place, {})
            own[name] = min(record.median_ms, own.get(name, math.inf))
    return times
