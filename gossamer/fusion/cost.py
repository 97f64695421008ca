"""How long segments should take: bytes, multiplications and launches at a device's speed.

A guess to begin with; `gossamer tune model` measures.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node

from gossamer.bench.timing import benchmark_kernel
from gossamer.fusion.capture import Captured
from gossamer.fusion.kernels import fusion_of
from gossamer.fusion.legality import why_illegal
from gossamer.fusion.operators import Attention, Gemm, Operator
from gossamer.fusion.patterns import shape_of, tensor_of
from gossamer.fusion.plan import Plan

LONGEST = 5  # operators of a fused segment
# Rows of 16 bits for which the CUDA GEMMs with epilogues are made; others go to Triton's, which
# reach about this share of cuBLAS' speed (128 x 14336 x 4096 on an H200: 41.2 us, GEMM alone 38).
TUNED_ROWS = (range(1, 65), range(192, 1 << 31))
OFF_RANGE = 0.85
EPILOGUES = ("linear_act", "gated_mlp")  # ops that have a GEMM of their own


@dataclass(frozen=True)
class Speed:
    """GB/s, TFLOP/s of a GEMM in the model's dtype, and microseconds of a launch."""

    bandwidth: float
    tflops: float
    launch_us: float


@functools.cache
def speed_of(device: torch.device, dtype: torch.dtype) -> Speed:
    """Measured once per process, in milliseconds."""
    n = 4096 if device.type == "cuda" else 512
    a, b = torch.randn(2, n, n, device=device).to(dtype)
    small = torch.zeros(8, device=device)
    gemm = benchmark_kernel(torch.mm, a, b, warmup=2, iters=5)
    launch = benchmark_kernel(torch.neg, small, warmup=3, iters=20)
    return Speed(_bandwidth(device), 2e-9 * n**3 / gemm.median_ms, 1e3 * launch.median_ms)


def _bandwidth(device: torch.device) -> float:
    """As `copy_bandwidth`, of fewer bytes: a plan is not to wait for it, nor to need gigabytes."""
    source = torch.ones(1 << (26 if device.type == "cuda" else 23), device=device)
    timing = benchmark_kernel(torch.zeros_like(source).copy_, source, warmup=1, iters=5)
    return 2 * source.nbytes / timing.median_ms / 1e6


def segment_us(segment: Sequence[Operator], fused: bool, speed: Speed) -> float:
    """Microseconds of a segment: one kernel, or one for each operator."""
    if not fused:
        return sum(_kernel_us((each,), _read(each), speed) for each in segment)
    outside = dict.fromkeys(node for each in segment for node in _read(each))
    made = {each.out for each in segment}
    share = OFF_RANGE if _off_range(segment) else 1.0
    return _kernel_us(segment, [n for n in outside if n not in made], speed, share)


def _kernel_us(
    operators: Sequence[Operator], inputs: Sequence[Node], speed: Speed, share: float = 1.0
) -> float:
    results = [operators[-1].out]
    nbytes = sum(_nbytes(node) for node in (*inputs, *results))
    flops = sum(_flops(each) for each in operators)
    return max(nbytes / speed.bandwidth / 1e3, flops / speed.tflops / share / 1e6) + speed.launch_us


def _read(each: Operator) -> list[Node]:
    """The tensors that an operator reads."""
    mine = set(each.nodes)
    return list(
        dict.fromkeys(n for node in each.nodes for n in node.all_input_nodes if n not in mine)
    )


def _nbytes(node: Node) -> int:
    tensor = tensor_of(node)
    return 0 if tensor is None else tensor.numel() * tensor.element_size()


def _flops(each: Operator) -> int:
    if isinstance(each, Gemm):
        return 2 * shape_of(each.out).numel() * shape_of(each.x)[-1]
    if isinstance(each, Attention):
        return 4 * shape_of(each.q).numel() * shape_of(each.k)[2]
    return 0


def _off_range(segment: Sequence[Operator]) -> bool:
    """Whether a GEMM with an epilogue of ours is not the one that is made for Hopper."""
    fusion = fusion_of(segment)
    out = tensor_of(segment[0].out)
    if fusion is None or out is None or out.device.type != "cuda" or fusion.op not in EPILOGUES:
        return False
    rows = out.numel() // out.shape[-1]
    half = out.dtype in (torch.float16, torch.bfloat16)
    return not half or not any(rows in known for known in TUNED_ROWS)


def predicted_plan(captured: Captured) -> Plan:
    """The plan that should take the least time, by dynamic programming over segments."""
    operators = captured.operators
    if not operators:
        return Plan(0, 0)
    speed = speed_of(captured.device, _dtype(operators))
    best: list[tuple[float, list[range]]] = [(0.0, [])]
    for end in range(1, len(operators) + 1):
        options = []
        for start in range(max(0, end - LONGEST), end):
            segment = operators[start:end]
            fused = len(segment) > 1
            if fused and (why_illegal(segment, captured.limits) or fusion_of(segment) is None):
                continue
            cost = best[start][0] + segment_us(segment, fused, speed)
            options.append((cost, [*best[start][1], range(start, end)]))
        best.append(min(options, key=lambda option: option[0]))
    return Plan.of_segments(best[-1][1])


def _dtype(operators: Sequence[Operator]) -> torch.dtype:
    tensor = tensor_of(operators[0].out)
    assert tensor is not None, "operators have tensors"
    return tensor.dtype
