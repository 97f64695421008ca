"""rope_append against the ops it stands for, one by one; in CUDA graphs, as an engine has them."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.suites import rope
from benchmarks.suites.calls import captured
from gossamer.bench.suite import Call, Case, Suite, main, tensor_bytes
from gossamer.kernels.arguments import RopeAppendArguments
from gossamer.ops import OPS, BlockFormat, kv_pack
from gossamer.ops import rope as rope_op
from gossamer.ops.rope_append import PLAIN

MODELS = ((32, 8, 128), (9, 3, 64))  # heads of queries, of keys, head_dim: Llama-3-8B, SmolLM2


class _Suite(Suite):
    """Blocks are compared as the numbers that they hold."""

    def call(self, fn: Call, *args: Any) -> tuple[Tensor, ...]:
        return _numbers(super().call(fn, *args), args[0].dtype)

    def expected(self, *args: Any) -> Any:
        return _numbers(OPS[self.op].outputs(*args, backend="reference"), args[0].dtype)


def _numbers(results: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(x.view(dtype) for x in results)


def _separate(*args: Any) -> tuple[Tensor, ...]:
    """As an engine would do without it; what was written."""
    a = RopeAppendArguments(*args)
    queries, roped = a.q.shape[1], a.q.shape[1] + a.k_blocks.shape[1]
    turned = rope_op(a.qkv[:, :roped], a.positions, a.cos, a.sin)
    if a.matrices is not None:
        turned = torch.bmm(turned.transpose(0, 1), a.matrices).transpose(0, 1)
    a.q.copy_(turned[:, :queries])
    fmt = BlockFormat(a.qkv.shape[2], None, PLAIN[a.qkv.dtype])
    kv_pack(turned[:, queries:], a.k_blocks, a.slots, fmt)
    kv_pack(a.qkv[:, roped:], a.v_blocks, a.slots, fmt)
    return _numbers((a.k_blocks, a.v_blocks, a.q), a.qkv.dtype)


def _make_args(
    tokens: int, model: tuple[int, int, int], basis: bool, dtype: torch.dtype, device: str
) -> tuple[Any, ...]:
    queries, kv, dims = model
    qkv = torch.randn(tokens, queries + 2 * kv, dims, dtype=dtype, device=device)
    fmt = BlockFormat(dims, None, PLAIN[dtype])
    blocks = torch.zeros(2, 2 * tokens, kv, fmt.nbytes, dtype=torch.uint8, device=device)
    slots = torch.randperm(64 * tokens, device=device)[:tokens]
    matrices = None
    if basis:
        random = torch.randn(queries + kv, dims, dims, device=device) / dims**0.5
        matrices = random.to(dtype)
    q = torch.empty(tokens, queries, dims, dtype=dtype, device=device)
    return (
        *(qkv, *rope.tables(tokens, dims, device), blocks[0], blocks[1], slots, q),
        *(None, 1e-6, matrices, None),
    )


def _bytes(*args: Any) -> int:
    a = RopeAppendArguments(*args)
    tables = a.qkv.shape[0] * (16 + 4 * a.qkv.shape[2])
    matrices = 0 if a.matrices is None else tensor_bytes(a.matrices)
    return 2 * tensor_bytes(a.qkv) + tables + matrices


def _case(tokens: int, model: tuple[int, int, int], basis: bool, device: str) -> Case:
    queries, kv, dims = model
    graph = captured if device == "cuda" else partial
    products = 2 * dims if basis else 0
    return Case(
        shape=(tokens, queries + 2 * kv, dims),
        make_args=partial(_make_args, tokens, model, basis),
        peers={"eager": partial(OPS["rope_append"], backend="reference")},
        adapted={"separate ops": partial(graph, _separate)},
        bytes=_bytes,
        flops=tokens * (queries + kv) * dims * (3 + products),
        variant="basis" if basis else "",
        prepare=graph,
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    for model in MODELS[1:] if quick else MODELS:
        for tokens in (4,) if quick else (1, 32, 256):
            for basis in (False, True):
                yield _case(tokens, model, basis, device)


# Eager PyTorch rounds the products before it adds them; the basis sums up 64 to 128 of them.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
SUITE = _Suite("rope_append", _cases, tolerance=TOLERANCE)

if __name__ == "__main__":
    main(SUITE)
