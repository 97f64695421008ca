"""Decode attention by others, over the dense cache that a case holds in blocks."""

import functools
import importlib
import importlib.util
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.suites.decode_cache import Args
from gossamer.bench.suite import PeerUnavailableError, Prepare
from gossamer.ops import kv_unpack

FLASHINFER_PAGE = 16
FLASHINFER_WORKSPACE = 256 << 20


def token_slots(table: Tensor, length: int, page_size: int) -> Tensor:
    """Slots of tokens 0 .. length-1 of each sequence: int64 [..., length]."""
    token = torch.arange(length, device=table.device)
    return table.long()[..., token // page_size] * page_size + token % page_size


def dense_cache(args: Args) -> tuple[Tensor, Tensor]:
    """K and V [sequences, tokens, kv_heads, head_dim] in q's dtype; all lengths are the same."""
    slots = token_slots(args.page_table, int(args.seq_lens[0]), args.page_size)
    k, v = (
        kv_unpack(blocks, slots.flatten(), fmt, args.q.dtype).unflatten(0, slots.shape)
        for blocks, fmt in zip((args.k_blocks, args.v_blocks), args.formats, strict=True)
    )
    return k, v


def _probed(call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """`call`, after it has worked once."""
    try:
        call()
    except (RuntimeError, ValueError) as error:
        raise PeerUnavailableError(_first_line(error)) from error
    return call


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def sdpa(backend: SDPBackend | None = None) -> Prepare:
    """torch's scaled_dot_product_attention, with this backend of its own or whatever it takes."""

    def adapt(*args: Any) -> Callable[[], Tensor]:
        a = Args(*args)
        k, v = (x.transpose(1, 2).contiguous() for x in dense_cache(a))
        q = a.q.transpose(1, 2).contiguous()

        def call() -> Tensor:
            with nullcontext() if backend is None else sdpa_kernel(backend):
                out = F.scaled_dot_product_attention(q, k, v, scale=a.scale, enable_gqa=True)
            return out.transpose(1, 2)

        return _probed(call)

    return adapt


def sdpa_folded(*args: Any) -> Callable[[], Tensor]:
    """The same with the query heads of a KV head as its rows, so that K and V are read once."""
    a = Args(*args)
    k, v = (x.transpose(1, 2).contiguous() for x in dense_cache(a))
    q = a.q.squeeze(1).unflatten(1, (k.shape[1], -1))

    def call() -> Tensor:
        out = F.scaled_dot_product_attention(q, k, v, scale=a.scale)
        return out.flatten(1, 2).unsqueeze(1)

    return _probed(call)


@functools.cache
def _workspace(device: torch.device) -> Tensor:
    return torch.zeros(FLASHINFER_WORKSPACE, dtype=torch.uint8, device=device)


def flashinfer(tensor_cores: bool) -> Prepare:
    """FlashInfer's decode over pages of 16 tokens, in order."""

    def adapt(*args: Any) -> Callable[[], Tensor]:
        try:
            return _flashinfer(Args(*args), tensor_cores)
        except Exception as error:  # its import and its compiler can fail in many ways
            raise PeerUnavailableError(_first_line(error)) from error

    return adapt


def _flashinfer(a: Args, tensor_cores: bool) -> Callable[[], Tensor]:
    library = importlib.import_module("flashinfer")
    k, v = dense_cache(a)
    batch, tokens, kv_heads, head_dim = k.shape
    shape = (-1, FLASHINFER_PAGE, kv_heads, head_dim)
    cache = torch.stack([k.reshape(shape), v.reshape(shape)], dim=1)
    wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
        _workspace(a.q.device), "NHD", use_tensor_cores=tensor_cores
    )
    index = functools.partial(torch.arange, dtype=torch.int32, device=a.q.device)
    wrapper.plan(
        index(batch + 1) * (tokens // FLASHINFER_PAGE),
        index(len(cache)),
        torch.full_like(index(batch), FLASHINFER_PAGE),
        *(a.q.shape[2], kv_heads, head_dim, FLASHINFER_PAGE),
        sm_scale=a.scale,
        q_data_type=a.q.dtype,
        kv_data_type=a.q.dtype,
    )
    q = a.q.squeeze(1)
    return _probed(lambda: wrapper.run(q, cache).unsqueeze(1))


def peers(device: str, dtype: torch.dtype, head_dim: int) -> dict[str, Prepare]:
    """What a user would call on this device instead, by name."""
    if device == "cpu":
        return {"sdpa": sdpa(), "sdpa_folded": sdpa_folded}
    found = {
        "sdpa_cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
        "sdpa_flash": sdpa(SDPBackend.FLASH_ATTENTION),
    }
    # FlashInfer compiles each dtype and head dimension on first use, so only the common one.
    common = dtype is torch.float16 and head_dim == 128
    if common and importlib.util.find_spec("flashinfer") is not None:
        found |= {"flashinfer": flashinfer(False), "flashinfer_tc": flashinfer(True)}
    return found
