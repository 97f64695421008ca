"""Drawings of masks: in the terminal, and as a figure with the kinds of tiles in colours."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from gossamer import plotting
from gossamer.masks import bitmaps
from gossamer.masks.base import Mask
from gossamer.masks.tiles import TileMap

SHADES = " ░▒▓█"
LARGEST_DENSE = 2048  # larger masks are drawn tile by tile
MOST_EDGES = 64  # more tiles than these would hide the mask behind their edges
TEXT_SIZE = (32, 64)  # lines, letters
COLORS = {  # of entries: in empty tiles, off and on in partial tiles, in full tiles
    "empty tile": "#ffffff",
    "partial tile, off": "#f6dcc3",
    "partial tile, on": plotting.ORANGE,
    "full tile": plotting.BLUE,
}


def text(mask: Mask, q_len: int, kv_len: int, *, b: int = 0, h: int = 0) -> str:
    """Queries go down, keys to the right; the darker, the more entries are allowed."""
    picked = mask.at(b, h)
    if max(q_len, kv_len) <= LARGEST_DENSE:
        shares = picked.dense(q_len, kv_len)[0, 0].float()
    else:
        shares = tile_densities(TileMap.build(picked, q_len, kv_len))
    lines = min(TEXT_SIZE[0], -(-shares.shape[0] // 2))
    letters = min(TEXT_SIZE[1], shares.shape[1])
    cells = adaptive_avg_pool2d(shares[None], (lines, letters))[0]
    # A single entry shows, and only what is wholly allowed is black.
    levels = (cells * (len(SHADES) - 1)).ceil().long()
    levels[(cells < 1) & (levels == len(SHADES) - 1)] -= 1
    edge = "+" + "-" * letters + "+"
    drawn = ["|" + "".join(SHADES[level] for level in line) + "|" for line in levels.tolist()]
    return "\n".join([edge, *drawn, edge])


def draw(
    mask: Mask,
    q_len: int,
    kv_len: int,
    path: Path | str,
    *,
    tile: tuple[int, int] = (64, 64),
    title: str | None = None,
    b: int = 0,
    h: int = 0,
) -> None:
    """A figure of one head of a mask; the format follows from the file's name."""
    tiles = TileMap.build(mask.at(b, h), q_len, kv_len, tile)
    patches = plotting.module("matplotlib.patches")
    with plotting.style(**{"axes.grid": False}):
        figure = plotting.new_figure(6, 6.6)
        axes = figure.subplots()
        image(axes, tiles)
        _edges(axes, tiles)
        axes.set_xlabel("key")
        axes.set_ylabel("query")
        axes.set_title(f"{title or mask}\n{summary(tiles)}", fontsize=8, wrap=True)
        handles = [
            patches.Patch(facecolor=c, edgecolor=plotting.EDGE, label=n) for n, c in COLORS.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=7)
        plotting.save(figure, Path(path))


def image(axes: Any, tiles: TileMap, step: int = 1) -> None:
    """The first head in the colours of COLORS, by entries or, of large masks, by tiles.

    step: between the rows, and the columns, that are shown.
    """
    colors = plotting.module("matplotlib.colors")
    drawn = axes.imshow(
        _levels(tiles).numpy()[::step, ::step],
        cmap=colors.ListedColormap(list(COLORS.values())),
        vmin=-0.5,
        vmax=3.5,
        interpolation="nearest",
        extent=(0, tiles.kv_len, tiles.q_len, 0),
        aspect="auto" if tiles.q_len != tiles.kv_len else "equal",
    )
    drawn.set_rasterized(True)


def summary(tiles: TileMap) -> str:
    """Density and kinds of tiles, in one line."""
    counts = tiles.counts()
    return (
        f"density {counts.density:.2%}; tiles of {tiles.tile_q}x{tiles.tile_k}: "
        f"{counts.full:,} full, {counts.partial:,} partial, {counts.empty:,} empty"
    )


def tile_densities(tiles: TileMap) -> Tensor:
    """float [rows of all heads, columns]: the share of a tile's entries that are allowed."""
    shares = _tile_matrix(tiles, torch.float32)
    inside = bitmaps.ones(tiles.bits).sum((1, 2)).float() / (tiles.tile_q * tiles.tile_k)
    values = torch.where(tiles.kinds < 0, 1.0, inside[tiles.kinds.clamp(min=0).long()])
    shares[tiles.row_of_tiles(), tiles.columns.long()] = values
    return shares


def _tile_matrix(tiles: TileMap, dtype: torch.dtype) -> Tensor:
    columns = -(-tiles.kv_len // tiles.tile_k)
    return torch.zeros(tiles.order.numel(), columns, dtype=dtype, device=tiles.device)


def _levels(tiles: TileMap) -> Tensor:
    """For each pixel the place of its colour in COLORS: entries, or whole tiles of large masks."""
    kinds = _tile_matrix(tiles, torch.int8)
    kinds[tiles.row_of_tiles(), tiles.columns.long()] = torch.where(tiles.kinds < 0, 3, 1).to(
        torch.int8
    )
    if max(tiles.q_len, tiles.kv_len) > LARGEST_DENSE:
        return torch.where(kinds == 1, 2, kinds)
    entries = kinds.repeat_interleave(tiles.tile_q, 0).repeat_interleave(tiles.tile_k, 1)
    entries = entries[: tiles.q_len, : tiles.kv_len]
    return torch.where((entries == 1) & tiles.dense()[0, 0], 2, entries)


def _edges(axes: Any, tiles: TileMap) -> None:
    if max(tiles.q_len // tiles.tile_q, tiles.kv_len // tiles.tile_k) > MOST_EDGES:
        return
    axes.hlines(range(0, tiles.q_len, tiles.tile_q), 0, tiles.kv_len, plotting.EDGE, linewidth=0.3)
    axes.vlines(range(0, tiles.kv_len, tiles.tile_k), 0, tiles.q_len, plotting.EDGE, linewidth=0.3)
