"""linear_act against eager PyTorch, and against cuBLAS's product alone (fact `product_ms`)."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.products import LLAMA_1B, LLAMA_8B, SMOLLM2, TOLERANCE, heat, matrix, time_product
from gossamer.bench.suite import Case, Suite, main, tensor_bytes

EAGER: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "relu2": lambda x: F.relu(x).square(),
    "relu": F.relu,
}


def _case(rows: int, n: int, k: int, activation: str, **options: object) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor, str]:
        x = torch.randn(rows, k, dtype=dtype, device=device)
        bias = torch.randn(n, dtype=dtype, device=device)
        return x, matrix(n, k, dtype, device), bias, activation

    def eager(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
        return EAGER[activation](F.linear(x, weight, bias))

    return Case(
        shape=(rows, n, k),
        make_args=make_args,
        peers={"eager": eager},
        bytes=lambda x, weight, bias, _: (
            tensor_bytes(x, weight, bias) + rows * n * x.element_size()
        ),
        flops=2 * rows * n * k,
        variant=activation,
        **options,  # type: ignore[arg-type]
    )


def _square(size: int, activation: str) -> Case:
    """The CUDA kernel at a size where it is the best one, with the time of the product alone."""
    x, weight = (matrix(size, size, torch.bfloat16, "cuda") for _ in range(2))
    facts = {"product_ms": time_product(x * size**0.5, weight)}
    options = {"facts": facts, "dtypes": (torch.bfloat16,), "backends": ("cuda",)}
    return _case(size, size, size, activation, **options)


def _cases(device: str, quick: bool) -> Iterator[Case]:
    if quick:
        yield _case(4, 960, 576, "gelu")
        return
    if device == "cpu":
        for k, n in (SMOLLM2, LLAMA_1B):
            for rows in (1, 8, 128):
                yield _case(rows, n, k, "gelu")
        return
    k, n = LLAMA_8B
    for rows in (1, 16, 64, 128, 256, 2048):
        yield _case(rows, n, k, "gelu", dtypes=(torch.bfloat16,))
    heat()
    for size, names in ((4096, EAGER), (8192, EAGER), (16_384, ("gelu", "silu", "mish"))):
        for name in names:
            yield _square(size, name)


SUITE = Suite("linear_act", _cases, tolerance=TOLERANCE)

if __name__ == "__main__":
    main(SUITE)
