"""linear_act against eager PyTorch, and beside cuBLAS's product alone.

The facts `beside_ms` and `product_ms` are of linear_act and of the product, measured by turns.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.products import LLAMA_1B, LLAMA_8B, SMOLLM2, TOLERANCE, by_turns, heat, matrix
from gossamer.bench.suite import Case, Suite, main, tensor_bytes
from gossamer.ops import linear_act

LARGE = 16_384
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
    """The CUDA kernel at a size where it is the best one, by turns with the product alone."""
    x, weight = (torch.randn(size, size, device="cuda").bfloat16() for _ in range(2))
    bias = x[0].contiguous()
    facts = by_turns(
        {
            "product_ms": lambda: F.linear(x, weight),
            "beside_ms": lambda: linear_act(x, weight, bias, activation, backend="cuda"),
        },
        rounds=7 if size < LARGE else 5,
    )
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
    for size, names in ((4096, EAGER), (8192, EAGER), (LARGE, ("gelu",))):
        for name in names:
            yield _square(size, name)


SUITE = Suite("linear_act", _cases, tolerance=TOLERANCE, best="cpu")

if __name__ == "__main__":
    main(SUITE)
