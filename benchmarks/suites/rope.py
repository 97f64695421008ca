"""rope against eager PyTorch, on the queries and keys of a fused projection."""

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.peers.compiled import compiled
from benchmarks.suites.shapes import pilot_dtypes
from gossamer.bench.suite import Case, Suite, main, tensor_bytes


def eager(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """As models have it: lines gathered, cast to the dtype, and the turned copy added."""
    c, s = (table[positions].to(x.dtype).unsqueeze(1) for table in (cos, sin))
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * c - b * s, b * c + a * s), dim=-1).flatten(-2)
    a, b = x.chunk(2, dim=-1)
    c, s = torch.cat((c, c), dim=-1), torch.cat((s, s), dim=-1)
    return x * c + torch.cat((-b, a), dim=-1) * s


def tables(tokens: int, head_dim: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Positions of the last tokens of a context of 4,096 or more, cos and sin."""
    rates = 10_000.0 ** (-torch.arange(0, head_dim, 2, device=device) / head_dim)
    angles = torch.outer(torch.arange(max(tokens, 4096), device=device), rates)
    positions = torch.arange(angles.shape[0] - tokens, angles.shape[0], device=device)
    return positions, angles.cos(), angles.sin()


def llama_shapes(device: str, quick: bool) -> list[tuple[int, int, int]]:
    """Queries and keys of Llama-3-8B (and Qwen3-8B), from a decode step to a long prompt."""
    tokens = (32,) if quick else (1, 32, 2048) if device == "cpu" else (1, 32, 2048, 16_384)
    return [(count, 40, 128) for count in tokens]


def traffic(x: Tensor) -> int:
    """x read and written; a position, and head_dim / 2 of cos and sin in float32, per token."""
    return 2 * tensor_bytes(x) + x.shape[0] * (8 + 4 * x.shape[2])


def _case(shape: tuple[int, int, int], value_heads: int, interleaved: bool, device: str) -> Case:
    tokens, heads, head_dim = shape

    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor, bool]:
        qkv = torch.randn(tokens, heads + value_heads, head_dim, dtype=dtype, device=device)
        return qkv[:, :heads], *tables(tokens, head_dim, device), interleaved

    return Case(
        shape=shape,
        make_args=make_args,
        peers={"eager": eager},
        adapted=compiled("rope", eager, device),
        bytes=lambda x, *_: traffic(x),
        flops=3 * torch.Size(shape).numel(),
        dtypes=pilot_dtypes(device, shape),
        variant="interleaved" if interleaved else "",
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    if device == "cpu" and not quick:
        yield _case((1, 12, 64), 3, interleaved=False, device=device)  # SmolLM2-135M
    for shape in llama_shapes(device, quick):
        yield _case(shape, 8, interleaved=False, device=device)
    if not quick:
        yield _case((2048, 40, 128), 8, interleaved=True, device=device)


SUITE = Suite("rope", _cases)

if __name__ == "__main__":
    main(SUITE)
