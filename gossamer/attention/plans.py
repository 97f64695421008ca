"""From a candidate to a plan: what is the same in every call is looked up once."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.attention.candidates import Arguments, Candidate
from gossamer.attention.prepared import PreparedMask
from gossamer.ops import OPS

# (q, k, v, bias, scale, softcap) -> out, and lse if it was asked for
Run = Callable[[Tensor, Tensor, Tensor, Tensor | None, float, float], tuple[Tensor, Tensor | None]]

NOTHING = Candidate("rows", "reference")  # of calls without queries or keys


@dataclass(frozen=True, eq=False)
class Plan:
    """The kernel and tiles that calls of one kind get. scale: where the caller gives none."""

    candidate: Candidate
    run: Run
    scale: float


def plan_of(mask: PreparedMask, candidate: Candidate, args: Arguments) -> Plan:
    """The maps that the candidate needs are built here."""
    scale = float(args.q.shape[3]) ** -0.5
    make = {"block": _block, "rows": _rows, "sdpa": _sdpa}[candidate.kernel]
    return Plan(candidate, make(mask, candidate, args), scale)


def empty_plan(args: Arguments) -> Plan:
    """No queries: nothing. No keys: every query sees nothing."""

    def run(
        q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, softcap: float
    ) -> tuple[Tensor, Tensor]:
        out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
        return out, torch.full(q.shape[:3], -torch.inf, device=q.device)

    return Plan(NOTHING, run, float(args.q.shape[3]) ** -0.5)


def _block(mask: PreparedMask, candidate: Candidate, args: Arguments) -> Run:
    tiles = mask.tiles(candidate.tile)
    overload = OPS["masked_attention"].select(mask.device.type, candidate.backend)
    work = mask.work(candidate.tile, candidate.limit) if candidate.backend == "cuda" else None
    offsets, lists, bits, order = tiles.offsets, tiles.tiles, tiles.bits, tiles.order
    with_lse = args.return_lse

    def run(
        q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, softcap: float
    ) -> tuple[Tensor, Tensor | None]:
        result: tuple[Tensor, Tensor | None] = overload(
            q, k, v, offsets, lists, bits, order, work, bias, scale, softcap, with_lse
        )
        return result

    return run


def _rows(mask: PreparedMask, candidate: Candidate, args: Arguments) -> Run:
    row_offsets, keys = mask.lists()
    batch, heads = mask.mask.batch or 1, mask.mask.heads or 1
    overload = OPS["masked_attention_rows"].select(mask.device.type, candidate.backend)

    def run(
        q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, softcap: float
    ) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = overload(
            q, k, v, row_offsets, keys, bias, batch, heads, scale, softcap
        )
        return result

    return run


def _sdpa(mask: PreparedMask, candidate: Candidate, args: Arguments) -> Run:
    """flash and cudnn are called directly: a context manager takes longer than a small call."""
    causal = candidate.backend != "mask" and mask.shape() == "causal"
    flash = torch.ops.aten._scaled_dot_product_flash_attention.default
    cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention.default
    dense, gqa = mask.dense() if candidate.backend == "mask" else None, args.grouped

    def run_flash(
        q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, softcap: float
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v = _taken(q, k, v)
        out, lse, *_ = flash(q, k, v, 0.0, causal, False, scale=scale)
        return out, lse

    def run_cudnn(
        q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, softcap: float
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v = _taken(q, k, v)
        out: Tensor = cudnn(q, k, v, None, False, 0.0, causal, False, scale=scale)[0]
        return out, None

    def run_torch(
        q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, softcap: float
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v = _taken(q, k, v)
        out = F.scaled_dot_product_attention(
            q, k, v, dense, is_causal=causal, scale=scale, enable_gqa=gqa
        )
        return out, None

    return {"flash": run_flash, "cudnn": run_cudnn}.get(candidate.backend, run_torch)


def _taken(*tensors: Tensor) -> list[Tensor]:
    """Copies of those that do not lie in multiples of 16 bytes on a GPU: plans are for any strides.

    torch's kernels read rows 16 bytes at a time, some without asking: for rows 136 bytes apart
    cuDNN's returned wrong results, and flash read from misaligned addresses (torch 2.11 on an
    H200). Dynamo cannot ask where a tensor begins.
    """
    return [x if _lies_well(x) else x.clone(memory_format=torch.contiguous_format) for x in tensors]


def _lies_well(x: Tensor) -> bool:
    batch, head, token, channel = x.stride()
    if channel != 1:
        raise RuntimeError(f"strides {x.stride()}")  # which `masked_attention` explains
    if x.device.type != "cuda":
        return True
    unit = 16 // x.element_size()
    if token <= 0 or (batch | head | token) % unit:
        return False
    return torch.compiler.is_compiling() or x.data_ptr() % 16 == 0
