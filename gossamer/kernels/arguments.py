"""The arguments of ops that have many, once each: by these names the schema, the checks, the
reference and the Triton launcher know them.

A new argument is added in three places, in the same order: here, in the schema in
csrc/bindings.cpp (a test compares the two) and in the struct of the same name in
csrc/attention/*/call.h, csrc/kv/kv_call.h or csrc/rope/rope_append.h. GEMMs and norms have
functions of few arguments in csrc/gemm/*.h, csrc/norm/*.h and csrc/rope/rope.h instead.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

A = TypeVar("A", bound=tuple[Any, ...])
R = TypeVar("R")


def named(arguments: type[A]) -> Callable[[Callable[[A], R]], Callable[..., R]]:
    """Makes of a function of `arguments` the one of its fields that torch calls."""
    make: Callable[[Iterable[Any]], A] = arguments._make  # type: ignore[attr-defined]
    if arguments._field_defaults:  # type: ignore[attr-defined]
        make = lambda args: arguments(*args)  # torch leaves defaults out  # noqa: E731

    def decorate(function: Callable[[A], R]) -> Callable[..., R]:
        def spread(*args: Any) -> R:
            return function(make(args))

        returned = inspect.signature(function).return_annotation
        signature = inspect.signature(arguments).replace(return_annotation=returned)
        spread.__signature__ = signature  # type: ignore[attr-defined]
        spread.__doc__ = function.__doc__
        return spread

    return decorate


class DecodeArguments(NamedTuple):
    """Of `decode_attention`; gossamer/ops/decode_attention.py says what they are."""

    q: Tensor
    k_blocks: Tensor
    v_blocks: Tensor
    page_table: Tensor
    seq_lens: Tensor
    dense_k: Tensor | None
    dense_v: Tensor | None
    dense_table: Tensor | None
    k_keep: int | None
    k_values: str
    k_scales: str
    v_keep: int | None
    v_values: str
    v_scales: str
    dense_values: str
    window: int
    sink: int
    page_size: int
    scale: float
    softcap: float
    sliding: int


class MaskedArguments(NamedTuple):
    """Of `masked_attention`; gossamer/ops/masked_attention.py says what they are."""

    q: Tensor
    k: Tensor
    v: Tensor
    offsets: Tensor
    tiles: Tensor
    bits: Tensor
    order: Tensor
    work: Tensor | None
    bias: Tensor | None
    scale: float
    softcap: float
    with_lse: bool


class MaskedRowsArguments(NamedTuple):
    """Of `masked_attention_rows`; gossamer/ops/masked_attention_rows.py says what they are."""

    q: Tensor
    k: Tensor
    v: Tensor
    row_offsets: Tensor
    keys: Tensor
    bias: Tensor | None
    batch: int
    heads: int
    scale: float
    softcap: float


class PrefillArguments(NamedTuple):
    """Of `prefill_attention`; gossamer/ops/prefill_attention.py says what they are."""

    q: Tensor
    k: Tensor
    v: Tensor
    sequences: Tensor
    tiles: Tensor
    far_k: Tensor | None
    far_v: Tensor | None
    scale: float
    window: int
    sink: int
    sliding: int


class KvPackArguments(NamedTuple):
    """Of `kv_pack`; gossamer/ops/kv_pack.py says what they are."""

    x: Tensor
    blocks: Tensor
    slots: Tensor
    keep: int | None
    values: str
    scales: str
    weights: Tensor | None = None
    scores: Tensor | None = None


class KvAppendArguments(NamedTuple):
    """Of `kv_append`; gossamer/ops/kv_append.py says what they are."""

    x: Tensor
    blocks: Tensor
    block_table: Tensor
    positions: Tensor
    keep: int | None
    values: str
    scales: str
    weights: Tensor | None = None
    scores: Tensor | None = None


class KvUnpackArguments(NamedTuple):
    """Of `kv_unpack`; gossamer/ops/kv_unpack.py says what they are."""

    blocks: Tensor
    slots: Tensor
    head_dim: int
    keep: int | None
    values: str
    scales: str
    dtype: torch.dtype


class Linear8BitArguments(NamedTuple):
    """Of `linear_int8` and `linear_fp8`."""

    x: Tensor
    x_scale: Tensor
    weight: Tensor
    weight_scale: Tensor
    bias: Tensor | None
    dtype: torch.dtype


class LinearNormArguments(NamedTuple):
    """Of `linear_norm`."""

    x: Tensor
    weight: Tensor
    residual: Tensor
    norm_weight: Tensor
    bias: Tensor | None = None
    norm_bias: Tensor | None = None
    norm: str = "rms"
    eps: float = 1e-6


class GatedMlpArguments(NamedTuple):
    """Of `gated_mlp`."""

    x: Tensor
    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    activation: str = "silu"


class GemmChainArguments(NamedTuple):
    """Of `gemm_chain`."""

    x: Tensor
    w1: Tensor
    w2: Tensor
    b1: Tensor | None = None
    b2: Tensor | None = None
    activation: str = "gelu"


class FusedResidualLayernormArguments(NamedTuple):
    """Of `fused_residual_layernorm`."""

    x: Tensor
    residual: Tensor
    weight: Tensor
    bias: Tensor | None = None
    eps: float = 1e-5
    input_bias: Tensor | None = None


class RopeAppendArguments(NamedTuple):
    """Of `rope_append`; gossamer/ops/rope_append.py says what they are."""

    qkv: Tensor
    positions: Tensor
    cos: Tensor
    sin: Tensor
    k_blocks: Tensor
    v_blocks: Tensor
    slots: Tensor
    q: Tensor
    norm: Tensor | None = None
    eps: float = 1e-6
    matrices: Tensor | None = None
    offsets: Tensor | None = None


class RmsnormRopeArguments(NamedTuple):
    """Of `rmsnorm_rope`."""

    x: Tensor
    weight: Tensor
    positions: Tensor
    cos: Tensor
    sin: Tensor
    eps: float = 1e-6
    interleaved: bool = False
