"""Masked attention by others: FlexAttention at its best settings, torch's own SDPA."""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.suites.masked_cases import Point
from gossamer.bench.suite import PeerUnavailableError

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

# Block of the mask, and options of the kernel: its own choice, and others that were fast at some
# point of a search over BLOCK_M, BLOCK_N, warps and stages on an H200. Without the check that a row
# has seen something yet, results of some masks are NaN; those are not counted.
UNSAFE = {"ROWS_GUARANTEED_SAFE": True}
FLEX: dict[str, tuple[int, dict[str, Any]]] = {
    "flex_128": (128, {}),
    "flex_128_64": (128, {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}),
    "flex_64_s2": (64, {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}),
    "flex_64_s3": (64, {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}),
    "flex_64_32": (64, {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 3}),
    "flex_64_unsafe": (
        64,
        {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2, **UNSAFE},
    ),
}
MASK_TENSOR_BYTES = 2 << 30  # a larger one nobody would make


@dataclass(frozen=True, eq=False)
class Peer:
    """`prepare()` makes the call that is timed, or raises PeerUnavailableError."""

    name: str
    prepare: Callable[[], Attend]
    facts: dict[str, float] = field(default_factory=dict)


def peers_of(point: Point, device: str) -> Iterator[Peer]:
    """Those that compute the same as we do at this point."""
    if point.flex:
        for name in FLEX:
            facts: dict[str, float] = {}
            yield Peer(name, functools.partial(_flex, point, name, facts), facts)
    if not point.sdpa:
        return
    if point.mask in ("full", "causal", "stof-causal"):
        causal = point.mask != "full"
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            name = f"sdpa_{backend.name.split('_', maxsplit=1)[0].lower()}"
            yield Peer(name, functools.partial(_sdpa, backend, None, causal))
        return
    yield Peer("sdpa_mask", functools.partial(_sdpa_mask, point, device))


def _sdpa_mask(point: Point, device: str) -> Attend:
    if point.n * point.n > MASK_TENSOR_BYTES:
        raise PeerUnavailableError(f"a mask of {point.n} by {point.n} is too large")
    return _sdpa(None, point.build_mask().dense(point.n, point.n, device), False)


def _sdpa(backend: SDPBackend | None, mask: Tensor | None, causal: bool) -> Attend:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with nullcontext() if backend is None else sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)

    return call


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    torch._dynamo.config.cache_size_limit = 4096  # one entry for each point
    return torch.compile(flex_attention, dynamic=False)


def _flex(point: Point, name: str, facts: dict[str, float]) -> Attend:
    block, options = FLEX[name]
    own = point.build_mask().to("cuda")
    # The first time it is built kernels are loaded; the second time is what a user waits for.
    for _ in range(2):
        torch.cuda.synchronize()
        started = time.perf_counter()
        mask = create_block_mask(
            *(own.mask_mod, None, own.heads, point.n, point.n),
            device="cuda",
            BLOCK_SIZE=block,
            _compile=False,
        )
        torch.cuda.synchronize()
        facts["build_ms"] = (time.perf_counter() - started) * 1e3
    tensors = (value for value in mask.as_tuple() if isinstance(value, Tensor))
    facts["map_bytes"] = sum(t.numel() * t.element_size() for t in tensors)
    facts["density"] = 1 - mask.sparsity() / 100
    return lambda q, k, v: _compiled()(q, k, v, block_mask=mask, kernel_options=options)


def compile_flex(point: Point) -> int:
    """Compiles every setting into torch's cache on disk, for processes that come later."""
    q, k, v = torch.randn(3, *point.shape, dtype=point.dtype, device="cuda")
    done = 0
    with torch.inference_mode():
        for name in FLEX:
            try:
                _flex(point, name, {})(q, k, v)
                done += 1
            except Exception:  # it fails in many ways; the measuring process says how
                continue
    return done
