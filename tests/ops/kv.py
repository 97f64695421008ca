"""Formats, rows and oracles for the tests of the ops on KV blocks.

The oracles here are numpy and read blocks by the offsets that the documentation gives: they share
no code with the library.
"""

from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from gossamer.ops import BlockFormat

HEAD_DIMS = (8, 32, 40, 64, 80, 96, 128, 256)
STEPS = {8: 0.0308, 4: 0.3352, 3: 0.5860, 2: 0.9957}
BITS = {
    "fp32": 32,
    "fp16": 16,
    "bf16": 16,
    "fp8_e4m3": 8,
    "int8": 8,
    "int4": 4,
    "int3": 3,
    "int2": 2,
}
FLOATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@st.composite
def profiles(draw: st.DrawFn, head_dim: int) -> str:
    """Bits for each 8 channels, in one run of groups or in several."""
    bits = draw(
        st.lists(
            st.sampled_from((8, 4, 3, 2, 0)), min_size=head_dim // 8, max_size=head_dim // 8
        ).filter(any)
    )
    if draw(st.booleans()):
        return "+".join(f"{b}x8" for b in bits)
    return "+".join(f"{b}x{8 * len(list(run))}" for b, run in groupby(sorted(bits, reverse=True)))


@st.composite
def formats(draw: st.DrawFn) -> BlockFormat:
    """Every format there is."""
    head_dim = draw(st.sampled_from(HEAD_DIMS))
    values = draw(st.sampled_from([*sorted(BITS), "a profile", "a profile"]))
    if values == "a profile":
        scales = draw(st.sampled_from(("none", "row")))
        return BlockFormat(head_dim, None, draw(profiles(head_dim)), scales)
    keep = draw(st.none() | st.integers(1, head_dim))
    scales = ["row"]
    if values.startswith("int"):
        scales.append("channel")
        if keep is None and head_dim % 32 == 0:
            scales.append("group")
    return BlockFormat(
        head_dim, keep, values, None if values in FLOATS else draw(st.sampled_from(scales))
    )


@dataclass(frozen=True)
class Call:
    """Random rows for a format, where they go, and how they rank."""

    fmt: BlockFormat
    x: Tensor
    slots: Tensor
    num_blocks: int
    weights: Tensor | None = None
    scores: Tensor | None = None

    def to(self, device: str) -> "Call":
        move = lambda t: None if t is None else t.to(device)  # noqa: E731
        return Call(
            self.fmt, self.x.to(device), self.slots.to(device), self.num_blocks,
            move(self.weights), move(self.scores),
        )  # fmt: skip

    @property
    def ranking(self) -> dict[str, Tensor | None]:
        return {"weights": self.weights, "scores": self.scores}


KINDS = ("normal", "ties", "mostly zero", "huge range")


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Rows of any kind in any order of slots, any number of tokens where that is allowed."""
    fmt = draw(formats())
    torch.manual_seed(draw(st.integers(0, 2**31)))
    heads = draw(st.integers(1, 3))
    num_blocks = draw(st.integers(2, 4))
    tokens = 32 * draw(st.integers(0, 2)) if fmt.whole_blocks else draw(st.integers(0, 50))
    x = rows(draw(st.sampled_from(KINDS)), (tokens, heads, fmt.head_dim))
    x = x.to(draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16])))
    if fmt.whole_blocks:
        order = torch.randperm(num_blocks)[: tokens // 32]
        slots = (order[:, None] * 32 + torch.arange(32)).flatten()
    else:
        slots = torch.randperm(32 * num_blocks)[:tokens]
        slots[torch.rand(tokens) < 0.1] = -1
    rankings = ["magnitude", "weights", "scores"] if fmt.keep else ["magnitude"]
    if fmt.coded and fmt.scales == "row":
        rankings = ["magnitude", "weights"]
    ranking = draw(st.sampled_from(rankings))
    weights = torch.rand(heads, fmt.head_dim) if ranking == "weights" else None
    scores = torch.randn(x.shape).mul(2).round() if ranking == "scores" else None
    return Call(fmt, x, slots, num_blocks, weights, scores)


def rows(kind: str, shape: tuple[int, ...]) -> Tensor:
    x = torch.randn(shape)
    if kind == "ties":
        return (x * 2).round() / 2
    if kind == "mostly zero":
        return x * (torch.rand(shape) < 0.1)
    if kind == "huge range":
        return x * torch.exp2(torch.randint(-14, 8, (*shape[:-1], 1)).float())
    return x


def selection(call: Call) -> np.ndarray:
    """Which entries stay, bool like x: the `keep` largest by rank, ties to the lower channel."""
    x = call.x.float().numpy()
    if call.fmt.keep is None:
        return np.ones(x.shape, dtype=bool)
    score = x if call.weights is None else x * call.weights.numpy()
    score = score if call.scores is None else call.scores.numpy()
    rank = np.where(np.isnan(score), np.inf, np.abs(score).astype(np.float64))
    rank = np.where(np.isinf(score) & ~np.isnan(score), np.finfo(np.float64).max, rank)
    order = np.argsort(-rank, axis=-1, kind="stable")[..., : call.fmt.keep]
    mask = np.zeros(x.shape, dtype=bool)
    np.put_along_axis(mask, order, True, axis=-1)
    return mask


def group_bits(fmt: BlockFormat) -> list[int]:
    """Bits of each 8 channels of dense codes; none for other formats."""
    if fmt.values in BITS:
        codes = fmt.keep is None and fmt.values not in FLOATS
        return [BITS[fmt.values]] * (fmt.head_dim // 8) if codes else []
    runs = (run.split("x") for run in fmt.values.split("+"))
    return [int(bits) for bits, channels in runs for _ in range(int(channels) // 8)]


def row_bytes(fmt: BlockFormat) -> int:
    """Of the values of a token."""
    if bits := group_bits(fmt):
        return -(-sum(bits) // 8) * 8
    return -(-(fmt.keep or fmt.head_dim) // 8) * BITS[fmt.values]


def _by_token(values: np.ndarray, fmt: BlockFormat) -> np.ndarray:
    """Values [.., bytes of a block] -> [.., 32, bytes of a row].

    Of dense codes that is [n][8 columns], 8 bits of the columns' lines after the other.
    """
    if not group_bits(fmt):
        chunks = values.reshape(*values.shape[:-1], -1, 32, BITS[fmt.values])
        return np.moveaxis(chunks, -2, -3).reshape(*values.shape[:-1], 32, -1)
    whole = row_bytes(fmt) // 16
    cells = values[..., : 512 * whole].reshape(*values.shape[:-1], whole, 32, 8, 2)
    rows = np.moveaxis(cells, (-3, -1), (-4, -2)).reshape(*values.shape[:-1], 32, 16 * whole)
    if row_bytes(fmt) == 16 * whole:
        return rows
    last = values[..., 512 * whole :].reshape(*values.shape[:-1], 2, 8, 8, 2)
    # [half][token of 8][column][which 8] -> [half][which 8][token of 8][column]
    last = np.moveaxis(last, -1, -3).reshape(*values.shape[:-1], 32, 8)
    return np.concatenate([rows, last], -1)


@dataclass(frozen=True)
class Parts:
    """The parts of blocks by their documented offsets, as numpy bytes."""

    bitmap: np.ndarray  # [blocks, heads, 32, D / 8]
    values: np.ndarray  # [blocks, heads, 32, bytes of a row]
    scales: np.ndarray  # [blocks, heads, bytes]

    @classmethod
    def of(cls, blocks: Tensor, fmt: BlockFormat) -> "Parts":
        data = blocks.numpy()
        row = 0 if fmt.keep is None else fmt.head_dim // 8
        start, end = 32 * row, 32 * row + 32 * row_bytes(fmt)
        return cls(
            data[..., :start].reshape(*data.shape[:2], 32, row),
            _by_token(data[..., start:end], fmt),
            data[..., end:],
        )


def token_bytes(fmt: BlockFormat) -> np.ndarray:
    """Which bytes of a block are a token's alone: int [32, n]. The rest are scales per channel."""
    parts = Parts.of(torch.arange(fmt.nbytes).view(1, 1, -1), fmt)
    owned = [parts.bitmap[0, 0], parts.values[0, 0]]
    if fmt.scales in ("row", "group"):
        scales = parts.scales.reshape(-1, 32, 2)
        owned.append(scales.swapaxes(0, 1).reshape(32, -1))
    return np.concatenate(owned, -1)


def _dense_codes(raw: np.ndarray, fmt: BlockFormat) -> np.ndarray:
    """Rows of bytes [N, heads, bytes] to codes from 0 on [N, heads, D]."""
    bits = group_bits(fmt)
    bytes_ = raw.reshape(*raw.shape[:2], -1, 8)
    lines = np.unpackbits(bytes_, axis=-1, bitorder="little").reshape(*bytes_.shape, 8)
    lines = np.moveaxis(lines, -2, -3).reshape(*raw.shape[:2], 8, -1)  # [N, heads, column, bit]
    codes = np.zeros((*raw.shape[:2], len(bits), 8))
    at = 0
    for width, owners, shift in ((8, [8], 0), (4, [4], 0), (2, [2, 3], 0), (1, [3], 2)):
        for group in [g for g, b in enumerate(bits) if b in owners]:
            field = lines[..., at : at + width] * 2.0 ** (shift + np.arange(width))
            codes[..., group, :] += field.sum(-1)
            at += width
    return codes.reshape(*raw.shape[:2], -1)


def _entries(raw: np.ndarray, fmt: BlockFormat) -> np.ndarray:
    """Rows of bytes [N, heads, bytes] to stored values before their scales, float64."""
    if fmt.values in FLOATS:
        return torch.from_numpy(raw.copy()).view(FLOATS[fmt.values]).double().numpy()
    if bits := group_bits(fmt):
        codes = _dense_codes(raw, fmt)
        if fmt.values == "fp8_e4m3":
            return (
                torch.from_numpy(codes.astype(np.uint8)).view(torch.float8_e4m3fn).double().numpy()
            )
        levels = 2.0 ** np.repeat(bits, 8)
        if fmt.values not in BITS:
            return codes - (levels - 1) / 2
        return codes - levels / 2 if fmt.scales == "row" else codes
    if fmt.values == "fp8_e4m3":
        return torch.from_numpy(raw.copy()).view(torch.float8_e4m3fn).double().numpy()
    width = BITS[fmt.values]
    place = 2.0 ** np.arange(width)
    if fmt.scales == "row":
        place[-1] *= -1  # two's complement
    bits = np.unpackbits(raw, axis=-1, bitorder="little").reshape(*raw.shape[:2], -1, width)
    return (bits * place).sum(-1)


def read(blocks: Tensor, call: Call) -> np.ndarray:
    """The rows of a call's slots in float64, decoded without any code of the library."""
    if call.x.shape[0] == 0:
        return np.zeros(call.x.shape)
    fmt, parts = call.fmt, Parts.of(blocks, call.fmt)
    block, token = call.slots.numpy() // 32, call.slots.numpy() % 32
    entries = _entries(parts.values[block, :, token], fmt)
    x = np.zeros(call.x.shape)
    if fmt.keep is None:
        mask = np.ones(x.shape, dtype=bool)
    else:
        mask = np.unpackbits(parts.bitmap[block, :, token], axis=-1, bitorder="little") == 1
        assert (mask.sum(-1)[call.slots.numpy() >= 0] == fmt.keep).all()
        entries = entries[..., : fmt.keep]
    for i in np.flatnonzero(call.slots.numpy() >= 0):
        x[i][mask[i]] = entries[i].reshape(-1)
    scale, minimum = scales(blocks, call)
    live = mask & (call.slots.numpy() >= 0)[:, None, None]
    return np.where(live, x * scale + minimum, 0)


def scales(blocks: Tensor, call: Call) -> tuple[np.ndarray, np.ndarray]:
    """Scale and minimum of every entry, like x."""
    fmt = call.fmt
    ones = np.ones(call.x.shape)
    if fmt.scales == "none":
        return ones, 0 * ones
    halves = Parts.of(blocks, fmt).scales.copy().view(np.float16).astype(np.float64)
    block, token = call.slots.numpy() // 32, call.slots.numpy() % 32
    if fmt.scales == "row":
        return halves[block, :, token][..., None] * ones, 0 * ones
    if fmt.scales == "channel":
        both = halves[block].reshape(*call.x.shape[:2], 2, fmt.head_dim)
    else:
        grouped = halves.reshape(*halves.shape[:2], fmt.head_dim // 32, 2, 32)
        both = np.repeat(grouped[block, :, :, :, token].swapaxes(2, 3), 32, axis=3)
    return both[:, :, 0], both[:, :, 1]


def wanted(blocks: Tensor, call: Call) -> np.ndarray:
    """What should be stored, like x: the rows, in the range of a profile's bits."""
    x = call.x.double().numpy()
    if call.fmt.values in BITS:
        return x
    levels = 2.0 ** np.repeat(group_bits(call.fmt), 8)
    end = np.where(levels == 1, 0, levels / 2) * units(blocks, call)
    return np.clip(x, -end, end)


def units(blocks: Tensor, call: Call) -> np.ndarray:
    """What entries of a profile are coded relative to: 1, or the row's root mean square."""
    scale = scales(blocks, call)[0]
    if call.fmt.scales != "row":
        return scale
    bits = np.repeat(group_bits(call.fmt), 8)
    steps = np.array([STEPS.get(b, 0.0) for b in bits])
    kept = np.where(bits > 0, call.x.double().numpy(), 0) * steps
    mean = np.sqrt((kept**2).sum(-1, keepdims=True) / (bits > 0).sum())
    rounded = mean.astype(np.float32).astype(np.float16).astype(np.float64)
    return np.broadcast_to(rounded, scale.shape)


def allowed_error(blocks: Tensor, call: Call) -> np.ndarray:
    """Half a step, and what float32 loses around it; like x."""
    x = np.abs(call.x.double().numpy())
    scale, minimum = scales(blocks, call)
    step = np.abs(scale)
    if call.fmt.values not in BITS:  # 0 bits have one value; codes and values have their own units
        bits, unit = np.repeat(group_bits(call.fmt), 8), units(blocks, call)
        step = (unit + np.abs(scale - unit) * 2.0**bits) * (bits > 0)
    if call.fmt.values == "fp8_e4m3":  # the distance between neighbours at this size
        size = x / np.maximum(step, 1e-30)
        step = step * np.exp2(np.maximum(np.floor(np.log2(np.maximum(size, 1e-30))), -6) - 3)
    return step * (0.5 + 1e-4) + 2.0**-22 * (x + np.abs(minimum))
