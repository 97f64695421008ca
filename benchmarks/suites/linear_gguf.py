"""linear_gguf against torch's GEMM of the same weights as floats."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.suites.gemm_cases import TOLERANCE_16BIT
from benchmarks.suites.linear import LLAMA, SMOLLM2
from gossamer.bench.suite import Case, Suite, main, tensor_bytes
from gossamer.ops.checks import FLOAT_DTYPES
from gossamer.ops.gguf import TYPES, dequantized

Args = tuple[Tensor, list[Tensor], str, None]


def random_blocks(n: int, k: int, kind: str, device: str) -> Tensor:
    """Rows of any codes, with scales below 1/8 where a block has them."""
    block = TYPES[kind]
    blocks = torch.randint(0, 256, (n * k // block.weights, block.bytes), dtype=torch.uint8)
    starts = {"q6_k": (208,), "q8_0": (0,), "q4_0": (0,), "q5_0": (0,)}
    for at in starts.get(kind, (0, 2)):
        scales = (torch.rand(len(blocks), 1) / 8).half()
        blocks[:, at : at + 2] = scales.view(torch.uint8)
    return blocks.view(n, -1).to(device)


def _wide(weights: list[Tensor], types: str) -> Tensor:
    pairs = zip(weights, types.split(","), strict=True)
    return torch.cat([dequantized(rows, kind) for rows, kind in pairs])


def _eager(x: Tensor, weights: list[Tensor], types: str, _: None) -> Callable[[], Tensor]:
    weight = _wide(weights, types).to(x.dtype)
    return lambda: F.linear(x, weight)


def _oracle(x: Tensor, weights: list[Tensor], types: str, _: None) -> Tensor:
    return x.double() @ _wide(weights, types).double().T


def _case(
    rows: int, n: int, k: int, kind: str, dtypes: tuple[torch.dtype, ...] = (torch.float32,)
) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> Args:
        x = torch.randn(rows, k, dtype=dtype, device=device)
        return x, [random_blocks(n, k, kind, device)], kind, None

    return Case(
        shape=(rows, n, k),
        make_args=make_args,
        peers={},
        adapted={"eager": _eager},
        bytes=lambda x, weights, *_: tensor_bytes(x, *weights) + rows * n * x.element_size(),
        flops=2 * rows * n * k,
        variant=kind,
        dtypes=dtypes,
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    if quick or device != "cpu":  # for a GPU there is no kernel of ours
        yield _case(4, 960, 576, "q4_1", FLOAT_DTYPES)
        return
    for n, k in (*SMOLLM2, *LLAMA):
        kinds = ("q4_1",) if k % 256 else ("q4_1", "q4_k", "q6_k")
        for kind in ("q8_0",) if n > 40_000 else kinds:
            for rows in (1, 4, 16, 512):
                if rows < 512 or n < 4_000:
                    yield _case(rows, n, k, kind)


SUITE = Suite("linear_gguf", _cases, oracle=_oracle, tolerance=TOLERANCE_16BIT)

if __name__ == "__main__":
    main(SUITE)
