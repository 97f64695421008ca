"""What only a GPU can show: streams, graphs, large indices, errors that leave the device usable."""

import pytest
import torch
from torch import Tensor

from gossamer import ops
from gossamer.ops import OPS, element_wise_mul_add, fused_add_gelu, fused_residual_rmsnorm
from gossamer.ops.registry import flat
from tests.ops.spec import example, spec_of, specified

pytestmark = pytest.mark.gpu
GPU_BACKENDS = ["triton", "cuda"]
RUNS = [(name, b) for name in specified() for b in GPU_BACKENDS if b in OPS[name].backends]


def _is_floating(arg: object) -> bool:
    """Whether any number will do; positions and sizes mean something."""
    return isinstance(arg, Tensor) and arg.is_floating_point()


@pytest.mark.parametrize(("name", "backend"), RUNS)
def test_runs_on_the_current_stream(name, backend):
    """Work queued ahead on a side stream must be finished before the op reads its input."""
    args = next(spec_of(name).inputs((64, 1024), lambda *s: torch.randn(s, device="cuda")))
    changed = tuple(a + 1 if _is_floating(a) else a for a in args)
    want = getattr(ops, name)(*changed, backend=backend)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        for a in args:
            if _is_floating(a):
                a.add_(1)
        got = getattr(ops, name)(*args, backend=backend)
    stream.synchronize()
    torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize(("name", "backend"), RUNS)
def test_replays_in_a_cuda_graph(name, backend):
    make = lambda *s: torch.randn(s, device="cuda")  # noqa: E731
    args = next(spec_of(name).inputs((8, 512), make))
    getattr(ops, name)(*args, backend=backend)  # compile outside of the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = getattr(ops, name)(*args, backend=backend)
    for a in args:
        if _is_floating(a):
            a.copy_(make(*a.shape))
    graph.replay()
    torch.cuda.synchronize()
    want = getattr(ops, name)(*args, backend=backend)
    torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("backend", GPU_BACKENDS)
@pytest.mark.parametrize("odd", [0, 1], ids=["packed", "element by element"])
def test_more_than_2_31_elements(backend, odd):
    width, rows = 4096 + odd, (1 << 19) + 3
    assert rows * width > 1 << 31
    x = torch.zeros(rows, width, dtype=torch.bfloat16, device="cuda")
    bias = torch.randn(width, device="cuda").bfloat16()
    # The ends, and the rows around which 31-bit indices end.
    some = [0, 1, (1 << 31) // width - 1, (1 << 31) // width, rows - 1]
    x[some] = torch.randn(len(some), width, device="cuda").bfloat16()
    calls = [
        (fused_add_gelu, (x, bias), (x[some], bias)),
        (element_wise_mul_add, (x, bias, x[-1]), (x[some], bias, x[-1])),
        (element_wise_mul_add, (x, x, x), (x[some], x[some], x[some])),
        (fused_residual_rmsnorm, (x, x, bias), (x[some], x[some], bias)),
    ]
    for op, large, small in calls:
        got = [r[some] for r in flat(op(*large, backend=backend))]
        torch.testing.assert_close(got, list(flat(op(*small, backend="reference"))))


@pytest.mark.parametrize("backend", GPU_BACKENDS)
def test_one_row_of_more_than_2_31_elements(backend):
    x = torch.zeros((1 << 31) + 8, dtype=torch.float16, device="cuda")
    x[-8:] = torch.randn(8, device="cuda").half()
    got = fused_add_gelu(x, x, backend=backend)
    want = fused_add_gelu(x[-8:], x[-8:], backend="reference")
    torch.testing.assert_close(got[-8:], want)
    assert not got[:-8].any()


def test_a_dimension_of_2_32_rows():
    """A size whose low 32 bits are 0, in the kernel that divides by sizes; 64 GiB of results."""
    ones = torch.ones(1, 1, dtype=torch.float16, device="cuda").expand(1 << 32, 1)
    row = torch.arange(8, dtype=torch.float16, device="cuda")
    got = element_wise_mul_add(row, row[2:3], ones, backend="cuda")
    assert got.shape == (1 << 32, 8)
    assert got[[0, 1 << 31, -1]].tolist() == [[2 * i + 1 for i in range(8)]] * 3


@pytest.mark.parametrize("name", [name for name in specified() if len(example(name)) > 1])
def test_arguments_on_different_devices(name):
    args = next(spec_of(name).inputs((3, 8), lambda *s: torch.randn(s, device="cuda")))
    with pytest.raises(ValueError, match="is on cpu; must be on cuda:0"):
        getattr(ops, name)(args[0], args[1].cpu(), *args[2:])
    with pytest.raises((RuntimeError, ValueError)):  # past the wrapper, from C++ or Python
        getattr(torch.ops.gossamer, name)(args[0], args[1].cpu(), *args[2:])
    getattr(ops, name)(*args)
    torch.cuda.synchronize()  # the device is still usable
