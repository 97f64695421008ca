"""What is in the cache, drawn to scale: a token's K and V, and what a query sees of a sequence."""

import math
from itertools import groupby
from typing import Any

import torch

from benchmarks.figures.chart import Picture, Row
from benchmarks.figures.render import heading
from benchmarks.records import Benchmarks
from gossamer import plotting
from gossamer.ops.kv_block import BLOCK_TOKENS, BlockFormat

HEAD_DIM = 64
KEPT = 32
# K and V of one token in one head, as SmolLM2's calibration has them.
PAIRS = {
    "dense": (BlockFormat(HEAD_DIM), BlockFormat(HEAD_DIM)),
    "sparse:k=32,v=32": (BlockFormat(HEAD_DIM, KEPT), BlockFormat(HEAD_DIM, KEPT)),
    "dense:int4": (BlockFormat(HEAD_DIM, None, "int4"), BlockFormat(HEAD_DIM, None, "int4")),
    "coded:23.5%": (
        BlockFormat(HEAD_DIM, None, "8x8+4x40+2x16", "row"),
        BlockFormat(HEAD_DIM, None, "4x16+3x32+2x16", "row"),
    ),
    "14% of the bytes": (
        BlockFormat(HEAD_DIM, None, "4x8+3x16+2x24+0x16", "row"),
        BlockFormat(HEAD_DIM, None, "4x8+2x48+0x8", "row"),
    ),
}
BIT_COLORS = {8: plotting.PURPLE, 4: plotting.ORANGE, 3: plotting.PINK, 2: plotting.GREEN}
SMALL: dict[str, Any] = {"textcoords": "offset points", "fontsize": 6.5, "color": "#333333"}

Cell = tuple[float, str, str]  # bits, colour, what it is


class Token(Picture):
    """Bars whose length is bytes, whose cells are entries: K above, V below."""

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        names: dict[str, Any] = {}
        for place, (name, pair) in enumerate(PAIRS.items()):
            for side, fmt in enumerate(pair):
                at = self._bar(axes, place + 0.37 * side - 0.185, _cells(fmt, seed=side), names)
                bits = 8 * fmt.nbytes / BLOCK_TOKENS
                assert abs(at - bits) < 1e-6, f"{name}: {at} bits are drawn of {bits}"
                axes.annotate("KV"[side], (0, place + 0.37 * side - 0.1), (-8, 0), **SMALL)
            text = f"K and V: {_bytes(pair):.0f} bytes, {_share(pair):.1%}"
            end = 8 * max(fmt.nbytes for fmt in pair) / BLOCK_TOKENS
            axes.annotate(text, (end, place + 0.08), (6, 0), **(SMALL | {"fontsize": 9}))
        axes.set_yticks(range(len(PAIRS)), PAIRS, fontsize=9)
        axes.tick_params(axis="y", length=0, pad=14)
        axes.set_xlim(0, 16 * HEAD_DIM * 1.3)
        axes.set_ylim(len(PAIRS) - 0.5, -0.5)
        places = range(0, 8 * 128 + 1, 8 * 16)
        axes.set_xticks(places, [f"{bits // 8}" for bits in places], fontsize=8)
        axes.set_xlabel("bytes of K, and of V, of one token in one head", fontsize=8)
        axes.grid(visible=False)
        heading(figure, self.title, names, self.size[0])

    def _bar(self, axes: Any, place: float, cells: list[Cell], names: dict[str, Any]) -> float:
        """Its length in bits."""
        at = 0.0
        edges: list[float] = []
        for (width, color, name), own in groupby(cells):
            count = len(list(own))
            bar = axes.barh(place, count * width, 0.33, at, color=color)
            names.setdefault(name, bar)
            edges += [at + i * width for i in range(count if width > 1 else 1)]
            at += count * width
        x = [x for edge in edges for x in (edge, edge, math.nan)]
        y = [place - 0.17, place + 0.17, math.nan] * len(edges)
        axes.plot(x, y, color="white", linewidth=0.4)
        return at


def _cells(fmt: BlockFormat, seed: int) -> list[Cell]:
    """What a row is made of."""
    full = (16.0, plotting.BLUE, "entry, 16 bits")
    if fmt.keep is not None:
        return [(1.0, plotting.GREY, "bitmap: which entries")] * HEAD_DIM + [full] * fmt.keep
    if fmt.profile is None:
        row = torch.randn(HEAD_DIM, generator=torch.Generator().manual_seed(seed)).abs()
        kept = row >= row.sort(descending=True).values[KEPT - 1]
        less = (16.0, "#b9d6e2", "entry that pruning leaves out")
        return [full if keep else less for keep in kept]
    channels = [bits for bits in fmt.profile.bits for _ in range(8) if bits]
    cells = [(float(bits), BIT_COLORS[bits], f"entry, {bits} bits") for bits in channels]
    return cells + [(16.0, plotting.RED, "scale of the row")] * (fmt.scales == "row")


def _bytes(pair: tuple[BlockFormat, BlockFormat]) -> float:
    return sum(fmt.nbytes for fmt in pair) / BLOCK_TOKENS


def _share(pair: tuple[BlockFormat, BlockFormat]) -> float:
    return _bytes(pair) / _bytes(PAIRS["dense"])


def token(_: Benchmarks) -> Picture:
    """What the cache of one token is made of, to scale."""
    rows: list[Row] = [
        {"panel": name, "series": "bytes", "x": HEAD_DIM, "y": _bytes(pair)}
        | {"label": f"{_share(pair):.1%}"}
        for name, pair in PAIRS.items()
    ]
    note = (
        f"K and V of one token in one head of {HEAD_DIM}, as SmolLM2 has, drawn to scale from the "
        "block format. Sparse rows keep the largest "
        "entries and say which they are. Coded rows are turned into a calibrated basis first, "
        "whose channels matter more or less: each "
        "8 of them have 8, 4, 3, 2 or 0 bits."
    )
    return Token("One token in the cache, dense and compressed", note, (8.6, 3.6), rows)


# ---- which tokens are compressed -----------------------------------------------------------------

POSITIONS = (200, 224, 240)  # of the query, in tokens
KINDS = {
    "sink: exact": plotting.GREEN,
    "stored pages: compressed": plotting.ORANGE,
    "window: exact": plotting.BLUE,
    "the query's own block: exact": plotting.PURPLE,
}


def kind_of(block: int, own: int) -> str:
    """What a query in block `own` sees of an earlier one, with sink=32 and window=32."""
    sink, stored, window, last = KINDS
    if block == own:
        return last
    return sink if block == 0 else window if block == own - 1 else stored


class Semantics(Picture):
    """What queries at several positions of a sequence see."""

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        names: dict[str, Any] = {}
        for line, position in enumerate(POSITIONS):
            own = (position - 1) // BLOCK_TOKENS
            for block in range(own + 1):
                kind, start = kind_of(block, own), block * BLOCK_TOKENS
                seen = min(BLOCK_TOKENS, position - start) - 1
                bar = axes.barh(line, seen, 0.5, start, color=KINDS[kind])
                names.setdefault(kind, bar)
            query = axes.plot([position], [line - 0.36], "v", color="black", markersize=5)[0]
            names.setdefault("the query", query)
            axes.annotate(f"token {position}", (262, line), (0, -3), **(SMALL | {"fontsize": 8}))
        names = {name: names[name] for name in (*KINDS, "the query")}
        axes.set_yticks([])
        axes.set_xlim(-3, 300)
        axes.set_ylim(2.6, -0.7)
        axes.set_xticks(range(0, 257, BLOCK_TOKENS))
        axes.set_xlabel("tokens of a sequence", fontsize=8)
        axes.grid(visible=False)
        heading(figure, self.title, names, self.size[0])


def semantics(_: Benchmarks) -> Picture:
    """What is exact and what is compressed."""
    rows: list[Row] = []
    for position in POSITIONS:
        own = (position - 1) // BLOCK_TOKENS
        for block in range(own + 1):
            row = {"panel": f"token {position}", "x": block, "y": float(block * BLOCK_TOKENS)}
            rows.append(row | {"series": kind_of(block, own)})
    note = (
        f"With sink=32 and window=32, in blocks of {BLOCK_TOKENS} tokens. It depends on positions "
        "alone, in prompts as in output: the first "
        "block, the query's own and those of the window are exact, everything else is as stored."
    )
    return Semantics("What a query sees", note, (8.6, 2.5), rows)
