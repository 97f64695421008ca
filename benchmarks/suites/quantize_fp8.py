"""quantize_fp8 against eager PyTorch, on hidden states and weights."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gossamer.bench.suite import Case, Suite, main, tensor_bytes
from gossamer.ops import OPS
from gossamer.ops.checks import FLOAT_DTYPES
from gossamer.ops.quantize_fp8 import GRANULARITIES, scale_shape

Pair = tuple[Tensor, Tensor]


def _bytes_of(call: Callable[..., Pair]) -> Callable[..., Pair]:
    """The codes as bytes, which can be compared."""

    def compared(*args: object) -> Pair:
        codes, scale = call(*args)
        return codes.view(torch.uint8), scale

    return compared


def _case(rows: int, k: int, granularity: str, dtypes: tuple[torch.dtype, ...]) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor, str]:
        return torch.randn(rows, k, dtype=dtype, device=device), granularity

    def needed(x: Tensor, granularity: str) -> int:
        scales = torch.Size(scale_shape(x, granularity)).numel()
        reads = 2 if granularity == "tensor" else 1  # once for the scale, once for the codes
        return reads * tensor_bytes(x) + x.numel() + 4 * scales

    return Case(
        shape=(rows, k),
        make_args=make_args,
        peers={"eager": _bytes_of(OPS["quantize_fp8"].reference)},  # which is plain torch
        bytes=needed,
        flops=4 * rows * k,
        variant=granularity,
        wrap=_bytes_of,
        dtypes=dtypes,
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    shapes = [(16, 4096), (2048, 4096), (16_384, 8192)]
    for rows, k in [(32, 1024)] if quick else shapes[:2] if device == "cpu" else shapes:
        for granularity in GRANULARITIES:
            yield _case(rows, k, granularity, FLOAT_DTYPES if quick else (torch.bfloat16,))


SUITE = Suite("quantize_fp8", _cases, oracle=_bytes_of(OPS["quantize_fp8"].reference))

if __name__ == "__main__":
    main(SUITE)
