"""How weights lie in the blocks of GGUF files, in plain torch.

A row is blocks side by side; a block is bytes: scales, minima and codes of 32 or 256 weights.
Numbers of 16 and 32 bits are little endian and not aligned.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.ops.checks import one_of

RUN = 32  # kernels expand so many weights at a time


@dataclass(frozen=True)
class BlockType:
    """weights in `bytes` bytes; expand: blocks uint8 [N, bytes] to float32 [N, weights]."""

    weights: int
    bytes: int
    expand: Callable[[Tensor], Tensor]


def dequantized(rows: Tensor, kind: str) -> Tensor:
    """Rows uint8 [n, bytes] of blocks of this type as float32 [n, k]."""
    block = TYPES[kind]
    blocks = rows.reshape(-1, block.bytes)
    return block.expand(blocks).reshape(rows.shape[0], -1)


def row_length(op: str, name: str, rows: Tensor, kind: str) -> int:
    """Weights in a row; TypeError or ValueError for rows that are not whole blocks of this type."""
    if not isinstance(rows, Tensor):
        raise TypeError(f"{op}: {name} is {type(rows).__name__}; must be a torch.Tensor")
    if rows.dtype is not torch.uint8:
        dtype = str(rows.dtype).removeprefix("torch.")
        raise TypeError(f"{op}: {name} has dtype {dtype}; must be uint8")
    one_of(f"{op}: type", kind, TYPES)
    if rows.dim() != 2 or rows.shape[1] < 1:
        raise ValueError(f"{op}: {name} has shape {list(rows.shape)}; must be [n, bytes]")
    if rows.shape[1] > 1 and rows.stride(1) != 1:
        raise ValueError(f"{op}: {name} has strides {list(rows.stride())}; rows must be contiguous")
    block = TYPES[kind]
    k = rows.shape[1] // block.bytes * block.weights
    if rows.shape[1] % block.bytes or k % RUN:
        unit = max(block.bytes, block.bytes * RUN // block.weights)
        raise ValueError(
            f"{op}: {name} has rows of {rows.shape[1]} bytes; must be a multiple of {unit}, "
            f"whole blocks of {kind}"
        )
    return k


# ---- parts of blocks ---------------------------------------------------------------------------


def _numbers(blocks: Tensor, at: int, dtype: torch.dtype = torch.float16, count: int = 1) -> Tensor:
    """`count` numbers of `dtype` from byte `at` of each block on, as float32 [N, count]."""
    part = blocks[:, at : at + count * dtype.itemsize].contiguous()
    return part.view(dtype).float()


def _nibbles(codes: Tensor) -> Tensor:
    """Bytes [N, m] as codes of 4 bits [N, 2 m]: all lower halves, then all higher ones."""
    return torch.cat((codes & 15, codes >> 4), -1)


def _fifth_bits(high: Tensor) -> Tensor:
    """Bytes [N, 4] as what bits 0 to 31 add to codes [N, 32]."""
    bits = torch.arange(8, device=high.device, dtype=torch.uint8)
    return ((high[:, :, None] >> bits) & 1).reshape(len(high), -1) << 4


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """12 bytes [N, 12] as the scales and the minima of 8 runs, 6 bits each: float32 [N, 8, 1]."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((first & 63, (third & 15) | (first >> 6 << 4)), -1)
    minima = torch.cat((second & 63, (third >> 4) | (second >> 6 << 4)), -1)
    return scales.float()[..., None], minima.float()[..., None]


# ---- types ---------------------------------------------------------------------------------------


def _floats(dtype: torch.dtype) -> BlockType:
    return BlockType(1, dtype.itemsize, lambda blocks: _numbers(blocks, 0, dtype))


def _q4_0(b: Tensor) -> Tensor:
    return (_nibbles(b[:, 2:]).float() - 8) * _numbers(b, 0)


def _q4_1(b: Tensor) -> Tensor:
    return _nibbles(b[:, 4:]).float() * _numbers(b, 0) + _numbers(b, 2)


def _q5_0(b: Tensor) -> Tensor:
    codes = _nibbles(b[:, 6:]) | _fifth_bits(b[:, 2:6])
    return (codes.float() - 16) * _numbers(b, 0)


def _q5_1(b: Tensor) -> Tensor:
    codes = _nibbles(b[:, 8:]) | _fifth_bits(b[:, 4:8])
    return codes.float() * _numbers(b, 0) + _numbers(b, 2)


def _q8_0(b: Tensor) -> Tensor:
    return b[:, 2:].contiguous().view(torch.int8).float() * _numbers(b, 0)


def _in_runs(b: Tensor, codes: Tensor) -> Tensor:
    """Codes [N, 8, 32], each run with a scale and a minimum of 6 bits after two float16."""
    scales, minima = _six_bits(b[:, 4:16])
    d, least = _numbers(b, 0)[..., None], _numbers(b, 2)[..., None]
    return (codes.float() * (d * scales) - least * minima).flatten(1)


def _q4_k(b: Tensor) -> Tensor:
    return _in_runs(b, _nibbles(b[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32))


def _q5_k(b: Tensor) -> Tensor:
    low = _nibbles(b[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    runs = torch.arange(8, device=b.device, dtype=torch.uint8)[:, None]
    return _in_runs(b, low | ((b[:, None, 16:48] >> runs) & 1) << 4)


def _q6_k(b: Tensor) -> Tensor:
    low = _nibbles(b[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    quarters = torch.arange(0, 8, 2, device=b.device, dtype=torch.uint8)[:, None]
    high = (b[:, 128:192].reshape(-1, 2, 1, 32) >> quarters) & 3
    codes = (low | high << 4).reshape(-1, 16, 16).float() - 32
    scales = b[:, 192:208].contiguous().view(torch.int8).float()[..., None]
    return (codes * (_numbers(b, 208)[..., None] * scales)).flatten(1)


# By gguf's names in lower case. csrc/gemm/gguf.h has the same.
TYPES = {
    "f32": _floats(torch.float32),
    "f16": _floats(torch.float16),
    "bf16": _floats(torch.bfloat16),
    "q4_0": BlockType(32, 18, _q4_0),
    "q4_1": BlockType(32, 20, _q4_1),
    "q5_0": BlockType(32, 22, _q5_0),
    "q5_1": BlockType(32, 24, _q5_1),
    "q8_0": BlockType(32, 34, _q8_0),
    "q4_k": BlockType(256, 144, _q4_k),
    "q5_k": BlockType(256, 176, _q5_k),
    "q6_k": BlockType(256, 210, _q6_k),
}
