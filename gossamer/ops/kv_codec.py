"""Rows to blocks and back in plain torch: what selection, values, scales and bits mean.

Every step is exact or rounds at a known place, to nearest even, so that all backends write the
same bytes (but for which NaN it is): scales are float16 rounded away from zero (minima down), which
makes every code fit without clamping and every value come back within half a step (and a rounding
of float32 where a minimum is added); code times scale is exact in float32.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.ops.kv_block import BLOCK_TOKENS, CHUNK, GROUP, BlockFormat
from gossamer.ops.kv_profile import BEST_STEP, GROUP_BITS

NAN_RANK = 0x7F800001  # all NaN rank alike, above infinity
FP8_MAX = 448.0


def select(x: Tensor, keep: int, weights: Tensor | None, scores: Tensor | None) -> Tensor:
    """Channels of the `keep` best entries of each row, ascending: x [..., D] -> int64 [..., keep].

    An entry ranks by |score|; without scores by |x * weight|, without weights by |x|, in float32.
    Ties go to the lower channel; NaN ranks above infinity.
    """
    score = x.float() if weights is None else x.float() * weights
    score = score if scores is None else scores
    rank = score.abs().contiguous().view(torch.int32).clamp_max(NAN_RANK)
    best = rank.sort(dim=-1, descending=True, stable=True).indices[..., :keep]
    return best.sort(dim=-1).values


@dataclass(frozen=True)
class BlockViews:
    """The parts of blocks [blocks, heads, bytes] as views; `bitmap` and `scales` may be empty."""

    bitmap: Tensor  # [blocks, heads, 32, D / 8]
    values: Tensor  # [blocks, heads, chunks, 32, bits]; of dense codes [blocks, heads, bytes]
    scales: Tensor  # row [.., 32, 2], channel [.., 2, D, 2], group [.., D / 32, 2, 32, 2]

    @classmethod
    def of(cls, blocks: Tensor, fmt: BlockFormat) -> "BlockViews":
        sizes = [fmt.bitmap_bytes, fmt.value_bytes, fmt.scale_bytes]
        bitmap, values, scales = blocks.split(sizes, dim=-1)
        scale_shape = {
            "row": (BLOCK_TOKENS, 2),
            "channel": (2, fmt.head_dim, 2),
            "group": (fmt.head_dim // GROUP, 2, BLOCK_TOKENS, 2),
            "none": (0,),
        }[fmt.scales or "none"]
        row_bytes = 0 if fmt.keep is None else fmt.head_dim // 8
        if fmt.profile is None:
            values = values.unflatten(-1, (fmt.chunks, BLOCK_TOKENS, fmt.bits))
        return cls(
            bitmap.unflatten(-1, (BLOCK_TOKENS, row_bytes)),
            values,
            scales.unflatten(-1, scale_shape),
        )


def write(
    x: Tensor,
    blocks: Tensor,
    slots: Tensor,
    fmt: BlockFormat,
    weights: Tensor | None,
    scores: Tensor | None,
) -> None:
    """Encode rows x [N, heads, D] and store them in `slots` [N]; a negative slot skips its row."""
    kept = (slots >= 0) & (slots < blocks.shape[0] * BLOCK_TOKENS)
    x, slots = x[kept].float(), slots[kept]
    scores = None if scores is None else scores[kept]
    views = BlockViews.of(blocks, fmt)
    block, token = slots // BLOCK_TOKENS, slots % BLOCK_TOKENS
    channels = None
    if fmt.keep is not None:
        channels = select(x, fmt.keep, weights, scores)
        views.bitmap[block, :, token] = _bitmap(channels, fmt.head_dim)
    if fmt.scales == "channel":
        _encode_channels(x, channels, block, token, views, fmt)
        return
    entries = x if channels is None else x.gather(-1, channels)
    entries = torch.nn.functional.pad(entries, (0, fmt.stored - entries.shape[-1]))
    if fmt.bits >= 16:
        codes = entries.to(_float_type(fmt.values)).view(torch.uint8)
        views.values[block, :, :, token] = codes.unflatten(-1, (fmt.chunks, fmt.bits))
        return
    if fmt.scales == "group":
        grouped = entries.unflatten(-1, (-1, GROUP))
        codes, scales = _encode_asymmetric(grouped, grouped.amin(-1), grouped.amax(-1), fmt.bits)
        for i in range(2):
            views.scales[block, :, :, i, token] = scales[i].unsqueeze(-1).view(torch.uint8)
        codes = codes.flatten(-2)
    elif fmt.coded:
        codes, scale = _encode_profile(entries, fmt, weights)
        if fmt.scales == "row":
            views.scales[block, :, token] = scale.unsqueeze(-1).view(torch.uint8)
    else:
        encode = _encode_fp8 if fmt.values == "fp8_e4m3" else _encode_signed
        codes, scale = encode(entries, fmt.bits)
        views.scales[block, :, token] = scale.unsqueeze(-1).view(torch.uint8)
    _store_codes(codes, block, token, views, fmt)


def _store_codes(
    codes: Tensor, block: Tensor, token: Tensor, views: BlockViews, fmt: BlockFormat
) -> None:
    """Codes [N, heads, stored] of rows into the slots of `token` [N] in `block` [N]."""
    if fmt.profile is None:
        views.values[block, :, :, token] = _to_bytes(codes, fmt.bits)
        return
    rows = fmt.profile.to_rows(codes + _least_code(fmt)).flatten(-2)
    at = fmt.profile.addresses.to(codes.device).flatten(1)[token]  # [N, bytes of a row]
    heads = torch.arange(codes.shape[1], device=codes.device)[:, None]
    views.values[block[:, None, None], heads, at[:, None]] = rows


def _load_codes(block: Tensor, token: Tensor, views: BlockViews, fmt: BlockFormat) -> Tensor:
    """The way back: codes as they are, from -2^(b-1) on where they have signs; int64."""
    if fmt.profile is None:
        signed = fmt.scales == "row" and fmt.values != "fp8_e4m3"
        return _from_bytes(views.values[block, :, :, token], fmt.bits, signed)
    at = fmt.profile.addresses.to(block.device).flatten(1)[token]
    heads = torch.arange(views.values.shape[1], device=block.device)[:, None]
    rows = views.values[block[:, None, None], heads, at[:, None]]
    return fmt.profile.to_codes(rows.unflatten(-1, (-1, CHUNK))) - _least_code(fmt)


def _least_code(fmt: BlockFormat) -> int:
    """What dense codes are stored less: the least one with a sign is stored as 0."""
    signed = fmt.scales == "row" and not fmt.coded and fmt.values != "fp8_e4m3"
    return 2 ** (fmt.bits - 1) if signed else 0


def _encode_channels(
    x: Tensor, channels: Tensor | None, block: Tensor, token: Tensor, views: BlockViews,
    fmt: BlockFormat,
) -> None:  # fmt: skip
    """Whole blocks, with one scale and minimum per channel over the kept entries of 32 tokens."""
    tokens = x.unflatten(0, (-1, BLOCK_TOKENS))  # [blocks, 32, heads, D]
    kept = torch.ones_like(x, dtype=torch.bool)
    if channels is not None:
        kept = torch.zeros_like(kept).scatter_(-1, channels, True)
    kept = kept.unflatten(0, (-1, BLOCK_TOKENS))
    low = tokens.masked_fill(~kept, float("inf")).amin(1)
    high = tokens.masked_fill(~kept, -float("inf")).amax(1)
    unused = ~kept.any(1)
    broken = (kept & ~tokens.isfinite()).any(1)
    low = low.masked_fill(unused, 0).masked_fill(broken, float("nan"))
    high = high.masked_fill(unused, 0)
    by_channel = tokens.movedim(1, -1)  # [blocks, heads, D, 32]
    codes, scales = _encode_asymmetric(by_channel, low, high, fmt.bits)
    for i in range(2):
        views.scales[block[::BLOCK_TOKENS], :, i] = scales[i].unsqueeze(-1).view(torch.uint8)
    rows = codes.movedim(-1, 1).flatten(0, 1)  # [N, heads, D]
    if channels is not None:
        rows = rows.gather(-1, channels)
        rows = torch.nn.functional.pad(rows, (0, fmt.stored - rows.shape[-1]))
    _store_codes(rows, block, token, views, fmt)


def read(blocks: Tensor, slots: Tensor, fmt: BlockFormat) -> Tensor:
    """Rows [N, heads, D] in float32 of `slots` [N]; zeros for a negative slot."""
    if blocks.shape[0] == 0:
        return torch.zeros(slots.shape[0], blocks.shape[1], fmt.head_dim, device=blocks.device)
    views = BlockViews.of(blocks, fmt)
    kept = (slots >= 0) & (slots < blocks.shape[0] * BLOCK_TOKENS)
    safe = slots.masked_fill(~kept, 0)
    block, token = safe // BLOCK_TOKENS, safe % BLOCK_TOKENS
    if fmt.bits >= 16:
        raw = views.values[block, :, :, token]  # [N, heads, chunks, bits]
        entries = raw.flatten(-2).contiguous().view(_float_type(fmt.values)).float()
    else:
        entries = _load_codes(block, token, views, fmt).float()
        if fmt.values == "fp8_e4m3":
            entries = entries.to(torch.uint8).view(torch.float8_e4m3fn).float()
    if fmt.coded and fmt.profile is not None:
        middle = {b: (2**b - 1) / 2 for b in GROUP_BITS}
        entries = entries - fmt.profile.by_channel(middle, entries.device)
    if fmt.scales == "row":
        entries = entries * _half(views.scales[block, :, token])
    elif fmt.scales == "group":
        scale, minimum = (_half(views.scales[block, :, :, i, token]) for i in range(2))
        entries = (entries.unflatten(-1, (-1, GROUP)) * scale + minimum).flatten(-2)
    if fmt.keep is not None:
        bits = views.bitmap[block, :, token].unsqueeze(-1) >> torch.arange(8, device=blocks.device)
        mask = (bits & 1).flatten(-2).bool()
        rank = (mask.cumsum(-1) - 1).clamp(0, fmt.stored - 1)
        entries = entries.gather(-1, rank)
    if fmt.scales == "channel":
        scale, minimum = (_half(views.scales[block, :, i]).squeeze(-1) for i in range(2))
        entries = entries * scale + minimum
    if fmt.keep is not None:
        entries = torch.where(mask, entries, 0.0)
    return torch.where(kept[:, None, None], entries, 0.0)


# ---- values ---------------------------------------------------------------------------


def _float_type(values: str) -> torch.dtype:
    return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[values]


def _encode_signed(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Codes -2^(b-1) .. 2^(b-1)-1 and a scale per row whose sign lets the larger end use -2^(b-1).

    That makes the step of 4-bit rows up to 1/8 finer than with -7 .. 7 (and never coarser).
    """
    most = 2 ** (bits - 1)
    positive, negative = x.amax(-1).clamp_min(0), (-x).amax(-1).clamp_min(0)
    flip = positive > negative
    larger, smaller = torch.maximum(positive, negative), torch.minimum(positive, negative)
    step = torch.maximum(larger * (1 / most), smaller * _inverse(most - 1))
    scale = _scale(step, x.isfinite().all(-1))
    scale = torch.where(flip & ~scale.isnan(), -scale, scale)
    codes = (x * _reciprocal(scale).unsqueeze(-1)).round().clamp(-most, most - 1)
    return codes.nan_to_num(0).long(), scale


def _encode_fp8(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    scale = _scale(x.abs().amax(-1) * _inverse(FP8_MAX), x.isfinite().all(-1))
    scaled = (x * _reciprocal(scale).unsqueeze(-1)).clamp(-FP8_MAX, FP8_MAX).nan_to_num(0)
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8).long(), scale


def _encode_profile(x: Tensor, fmt: BlockFormat, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Codes of the intervals that entries are in, clamped; a scale per row, 1 where there is none.

    Rows are coded relative to their root mean square in standard deviations of their channels,
    rounded to float16; the scale that is stored is the one with the least square error for these
    codes, channels weighted. Without one, infinities end up at the ends of the range and NaN in its
    middle.
    """
    assert fmt.profile is not None
    steps = fmt.profile.by_channel(BEST_STEP, x.device)
    half = fmt.profile.by_channel({b: 2 ** (b - 1) for b in GROUP_BITS if b}, x.device)
    unit = torch.ones(x.shape[:-1], dtype=torch.float16, device=x.device)
    # In float64, so that the order of a sum does not show in the float16 that is left of it.
    kept = x.masked_fill(steps == 0, 0).double()  # what has no bits does not count, NaN either
    if fmt.scales == "row":
        squares = (kept * steps.double()).square().sum(-1) / int((steps > 0).sum())
        unit = squares.sqrt().float().half()
        unit = unit.masked_fill(~unit.isfinite(), float("nan"))
    below = (x * _reciprocal(unit).unsqueeze(-1)).nan_to_num(0).floor()
    codes = (below + half).clamp_min(0).minimum((2 * half - 1).clamp_min(0))
    scale = unit
    if fmt.scales == "row":
        values = (codes - half + 0.5).masked_fill(steps == 0, 0).double()
        weighted = values if weights is None else values * weights.double()
        fitted = ((kept * weighted).sum(-1) / (values * weighted).sum(-1)).float().half()
        scale = torch.where(unit == 0, 0.0, fitted.masked_fill(~fitted.isfinite(), float("nan")))
        scale = scale.masked_fill(unit.isnan(), float("nan")).half()
    return codes.long(), scale


def _encode_asymmetric(
    x: Tensor, low: Tensor, high: Tensor, bits: int
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Codes 0 .. 2^b-1 of x [..., n], and (scale, minimum) in float16 for low, high [...]."""
    most = 2**bits - 1
    minimum = _round_down(low)
    finite = low.isfinite() & high.isfinite() & minimum.isfinite()
    minimum = minimum.masked_fill(~finite, 0)
    scale = _scale((high - minimum.float()) * _inverse(most), finite)
    minimum = minimum.masked_fill(scale.isnan(), 0)
    shifted = (x - minimum.float().unsqueeze(-1)) * _reciprocal(scale).unsqueeze(-1)
    codes = shifted.round().clamp(0, most).nan_to_num(0).long()
    return codes, (scale, minimum)


# ---- scales ---------------------------------------------------------------------------


def _scale(step: Tensor, finite: Tensor) -> Tensor:
    """`step` >= 0 rounded up to float16; NaN where the row cannot be scaled: it decodes to NaN."""
    half = (step + 0.0).half()  # no negative zero
    raised = (half.view(torch.int16) + 1).view(torch.float16)
    up = torch.where(half.float() < step, raised, half)
    return up.masked_fill(~finite | ~up.isfinite(), float("nan"))


def _round_down(x: Tensor) -> Tensor:
    half = (x + 0.0).half()
    bits = half.view(torch.int16)
    below = torch.where(half > 0, bits - 1, torch.where(half < 0, bits + 1, -0x7FFF))
    return torch.where(half.float() > x, below.to(torch.int16).view(torch.float16), half)


def _reciprocal(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 0.0, 1.0 / scale.float())


def _inverse(divisor: float) -> float:
    """1 / divisor rounded to float32: a product by it is the same on every device."""
    return torch.tensor(1.0 / divisor, dtype=torch.float32).item()


def _half(raw: Tensor) -> Tensor:
    return raw.contiguous().view(torch.float16).float()


# ---- bits -----------------------------------------------------------------------------


def _bitmap(channels: Tensor, head_dim: int) -> Tensor:
    mask = channels.new_zeros((*channels.shape[:-1], head_dim)).scatter_(-1, channels, 1)
    weights = 1 << torch.arange(8, device=channels.device)
    bitmap: Tensor = (mask.unflatten(-1, (-1, 8)) * weights).sum(-1).to(torch.uint8)
    return bitmap


def _to_bytes(codes: Tensor, bits: int) -> Tensor:
    """Codes [..., n] of b bits -> bytes [..., n / 8, b]; code i of 8 is at bit i * b."""
    codes = (codes & (2**bits - 1)).unflatten(-1, (-1, CHUNK))
    if bits == 8:
        return codes.to(torch.uint8)
    word = (codes << (bits * torch.arange(CHUNK, device=codes.device))).sum(-1, keepdim=True)
    return ((word >> (8 * torch.arange(bits, device=codes.device))) & 255).to(torch.uint8)


def _from_bytes(raw: Tensor, bits: int, signed: bool) -> Tensor:
    """Bytes [..., n / 8, b] -> codes [..., n]."""
    codes: Tensor = raw.long()
    if bits != 8:
        word = (codes << (8 * torch.arange(bits, device=raw.device))).sum(-1, keepdim=True)
        codes = (word >> (bits * torch.arange(CHUNK, device=raw.device))) & (2**bits - 1)
    if signed:
        codes = codes - ((codes >> (bits - 1)) << bits)
    return codes.flatten(-2)
