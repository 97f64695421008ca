"""Which kernel a cache decodes with here, and how fast that is against a dense cache.

The kernel is the one that `decode_attention` itself would choose. Times are measured on the device
that is there, one layer at one typical point, once per process.
"""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from gossamer import native
from gossamer.bench.timing import time_calls
from gossamer.kernels.arguments import DecodeArguments
from gossamer.kv.cache_spec import CacheSpec
from gossamer.kv.cache_step import DecodeBatch
from gossamer.kv.config import KVConfig
from gossamer.kv.layouts import PLAIN, Side
from gossamer.kv.paged_cache import PagedCache
from gossamer.kv.rule import CacheRule
from gossamer.kv.shape import KVShape
from gossamer.ops import OPS
from gossamer.ops.kv_block import BLOCK_TOKENS, has_codes

POINTS = {"cuda": (8, 32768), "cpu": (2, 4096)}  # sequences and their tokens
# Of a cache that is measured; heads of large models see fewer tokens. A GPU spares an eighth of its
# free memory: 10 to 20 us of a call do not depend on the length, so short ones tell less.
MOST_BYTES = {"cuda": 2 << 30, "cpu": 256 << 20}
GPU_SHARE = 8
FREE_BYTES = 1 << 30  # of a GPU's memory, or nothing is measured
CPU_SECONDS, CPU_CALLS = 0.05, 20
SLOWER = 0.9  # of dense's speed: below it, a difference is no noise
NATIVE = {"cpu": "cpu", "cuda": "cuda"}  # the tuned backend of each device


@dataclass(frozen=True)
class DecodeSpeed:
    """kernel: `cuda codes`, `cuda sparse`, `cuda dense`, `triton`, `cpu avx2`, `reference`, ...

    tuned: whether it was written for this device and such blocks. us, dense_us: microseconds of
    one layer at `point`, with this cache and with a dense one of the model's type; None if they
    were not measured. reason: why it is not tuned, or not measured; empty for neither.
    """

    kernel: str
    tuned: bool
    us: float | None = None
    dense_us: float | None = None
    point: str = ""
    reason: str = ""

    @property
    def measured(self) -> bool:
        return self.against_dense is not None

    @property
    def against_dense(self) -> float | None:
        """How many times as fast as dense."""
        if self.us is None or self.dense_us is None:
            return None
        return self.dense_us / self.us

    @property
    def slow(self) -> bool:
        """Whether it is slower than dense, or nobody can say that it is not."""
        if self.against_dense is None:
            return not self.tuned
        return self.against_dense < SLOWER

    @property
    def short(self) -> str:
        """For a cell of a table."""
        factor = self.against_dense
        return f"{'?' if factor is None else f'{factor:.2f}x'} ({self.kernel})"

    def __str__(self) -> str:
        if self.against_dense is None:
            return f"{self.kernel}, not measured: {self.reason}"
        return (
            f"{self.kernel}, {self.us:.0f} us a layer at {self.point} where dense takes "
            f"{self.dense_us:.0f}: {self.against_dense:.2f}x"
        )


def decode_speed(
    config: KVConfig,
    shape: KVShape,
    dtype: torch.dtype,
    device: torch.device | str,
    *,
    measure: bool = True,
    point: tuple[int, int] | None = None,
) -> DecodeSpeed:
    """What decoding with this cache is like on `device`, for a model of this shape and type.

    point: sequences and their tokens; None for a typical one. Of a cache that would be too large,
    fewer tokens are measured. Takes tens of milliseconds, at most MOST_BYTES and what timing needs;
    nothing for a cache that was asked for before. Never measures while a CUDA graph is captured.
    Raises ValueError for a cache that such a model cannot have, and for bits that are not known.
    """
    device = torch.device(device)
    config, shape = _bare(config), replace(shape, layers=1)
    speed = _kernel(config, shape, dtype, device)
    reason = _why_not_measured(speed.kernel, device) if measure else "not asked for"
    if reason is not None:
        return replace(speed, reason=speed.reason or reason)
    dense = KVConfig.of("dense", dtype)
    sequences, _ = point = POINTS[device.type] if point is None else point
    tokens = _tokens(shape, dtype, point, _most_bytes(device))
    try:
        # By kernel: someone may have asked for another backend before.
        us = _measured(config, shape, dtype, device, sequences, tokens, speed.kernel)
        dense_kernel = _kernel(dense, shape, dtype, device).kernel
        dense_us = _measured(dense, shape, dtype, device, sequences, tokens, dense_kernel)
    except Exception as error:  # whoever asks can do without the figures
        lines = str(error).splitlines() or [type(error).__name__]
        return replace(speed, reason=speed.reason or f"measuring failed: {lines[0]}")
    place = f"{sequences} x {tokens:,} tokens"
    place += " by one thread" if device.type == "cpu" else ""
    return replace(speed, us=us, dense_us=dense_us, point=place)


def cuda_limits(config: KVConfig, shape: KVShape, dtype: torch.dtype) -> str | None:
    """Why the CUDA kernels do not take this cache; None if they do. Needs no GPU.

    Raises ValueError for a cache that such a model cannot have.
    """
    return OPS["decode_attention"].unsuited("cuda", _arguments(config, shape, dtype)).get("cuda")


def kernel_family(config: KVConfig, head_dim: int) -> str:
    """codes, sparse or dense: what the kernels of a GPU are called by."""
    formats = [side.format(head_dim) for side in (config.k, config.v)]
    if any(fmt.keep is not None for fmt in formats):
        return "sparse"
    return "codes" if all(has_codes(fmt.keep, fmt.values) for fmt in formats) else "dense"


# ---- which kernel --------------------------------------------------------------------------------


def _bare(config: KVConfig) -> KVConfig:
    """Without what decoding does not depend on."""
    return replace(config, k=Side(config.k.layout), v=Side(config.v.layout), prefill="blocks")


def _kernel(
    config: KVConfig, shape: KVShape, dtype: torch.dtype, device: torch.device
) -> DecodeSpeed:
    op, where = OPS["decode_attention"], device.type
    arguments = _arguments(config, shape, dtype)
    op(*arguments)  # on no device: only raises what it refuses
    unsuited = op.unsuited(where, arguments)
    backend, tuned = op.choose(where, unsuited=unsuited), NATIVE.get(where, "")
    names = {"cuda": f"cuda {kernel_family(config, shape.head_dim)}"}
    names["cpu"] = f"cpu {native.cpu_isa()}"
    if backend == tuned:
        return DecodeSpeed(names[backend], tuned=True)
    reason = unsuited.get(tuned) or op.why_not(tuned, where) or "another backend was asked for"
    return DecodeSpeed(names.get(backend, backend), tuned=False, reason=reason)


def _arguments(config: KVConfig, shape: KVShape, dtype: torch.dtype) -> DecodeArguments:
    """As PagedCache has them, with nothing in them."""
    make = partial(torch.empty, device="meta")
    k, v = (side.format(shape.head_dim) for side in (config.k, config.v))
    dense = KVConfig.of("dense", dtype).k.format(shape.head_dim)
    pools = [make(1, shape.kv_heads, fmt.nbytes, dtype=torch.uint8) for fmt in (k, v, dense)]
    table, lens = make(1, 1, dtype=torch.int32), make(1, dtype=torch.int32)
    plain = CacheRule.of(config, dtype).plain
    return DecodeArguments(
        q=make(1, 1, shape.query_heads, shape.head_dim, dtype=dtype),
        k_blocks=pools[0], v_blocks=pools[1], page_table=table, seq_lens=lens,
        dense_k=None if plain else pools[2], dense_v=None if plain else pools[2],
        dense_table=None if plain else table,
        k_keep=k.keep, k_values=k.values, k_scales=str(k.scales),
        v_keep=v.keep, v_values=v.values, v_scales=str(v.scales),
        dense_values=PLAIN[dtype], window=config.window, sink=config.sink,
        page_size=BLOCK_TOKENS, scale=1.0, softcap=0.0, sliding=0,
    )  # fmt: skip


# ---- how fast ------------------------------------------------------------------------------------


def _why_not_measured(kernel: str, device: torch.device) -> str | None:
    if device.type not in POINTS:
        return f"nothing is measured on {device.type}"
    if kernel == "reference":
        return "the reference would take seconds"
    if device.type == "cpu":
        return None
    if not torch.cuda.is_available():
        return "no CUDA GPU is visible"
    if torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    free, _ = torch.cuda.mem_get_info(device)
    return None if free >= FREE_BYTES else f"{free >> 20} MiB of the GPU's memory are free"


def _most_bytes(device: torch.device) -> int:
    """In powers of two, so that all caches of a model are measured with as many tokens."""
    most = MOST_BYTES[device.type]
    if device.type != "cuda":
        return most
    free, _ = torch.cuda.mem_get_info(device)
    return min(most, 1 << (free // GPU_SHARE).bit_length() - 1)


def _tokens(shape: KVShape, dtype: torch.dtype, point: tuple[int, int], most: int) -> int:
    """Of each sequence: the same for all caches of a model."""
    sequences, tokens = point
    block = KVConfig.of("dense", dtype).block_bytes(shape)
    fits = max(1, most // (sequences * block)) * BLOCK_TOKENS
    return min(max(BLOCK_TOKENS, tokens // BLOCK_TOKENS * BLOCK_TOKENS), fits)


@functools.cache
def _measured(
    config: KVConfig,
    shape: KVShape,
    dtype: torch.dtype,
    device: torch.device,
    sequences: int,
    tokens: int,
    kernel: str,
) -> float:
    """Microseconds of decoding one layer of random rows. kernel: which it will be."""
    spec = CacheSpec(config, shape, dtype, device)
    if device.type == "cpu":
        return _cpu_us(_call(spec, sequences, tokens))
    timing = time_calls(_call(spec, sequences, tokens), device=device, warmup=3, iters=20)
    torch.cuda.empty_cache()  # an engine that starts takes what is free
    return 1e3 * timing.median_ms


def _call(spec: CacheSpec, sequences: int, tokens: int) -> Callable[[int], Tensor]:
    shape, device = spec.shape, spec.device
    blocks = tokens // BLOCK_TOKENS
    near = min(spec.rule.dense_pages, blocks)
    cache = PagedCache(spec, sequences * blocks, sequences * near)
    cache.randomise(torch.Generator(device).manual_seed(0))
    table = torch.arange(sequences * blocks, dtype=torch.int32, device=device)
    stored = table.view(sequences, blocks)
    dense = stored if near == 0 else _window_table(stored, near)
    lens = torch.full((sequences,), tokens, dtype=torch.int32, device=device)
    batch = DecodeBatch(stored, dense, lens)
    q = torch.ones(sequences, shape.query_heads, shape.head_dim, dtype=spec.dtype, device=device)

    @torch.inference_mode()
    def call(_: int) -> Tensor:
        return cache.decode(0, q, batch, shape.head_dim**-0.5, 0)

    return call


def _window_table(stored: Tensor, near: int) -> Tensor:
    """`near` dense pages of each sequence, over and over: few of the entries are read."""
    sequences, blocks = stored.shape
    first = torch.arange(sequences, device=stored.device)[:, None] * near
    return (first + torch.arange(blocks, device=stored.device) % near).int()


def _cpu_us(call: Callable[[int], Tensor]) -> float:
    """By one thread, and the least: where cores are busy, threads wait for each other and no time
    means anything. bench.timing would change how the whole process frees memory."""
    threads, samples = torch.get_num_threads(), list[float]()
    torch.set_num_threads(1)
    try:
        call(0)
        while len(samples) < CPU_CALLS and sum(samples) < CPU_SECONDS:
            start = time.perf_counter()
            call(0)
            samples.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return 1e6 * min(samples)
