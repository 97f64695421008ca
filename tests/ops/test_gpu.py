"""What only a GPU can show: streams, graphs, large indices, errors that leave the device usable."""

import pytest
import torch
from torch import Tensor

from gossamer import ops
from gossamer.ops import OPS, element_wise_mul_add, fused_add_gelu, fused_residual_rmsnorm
from tests.ops.spec import spec_of

pytestmark = pytest.mark.gpu
GPU_BACKENDS = ["triton", "cuda"]


@pytest.mark.parametrize("backend", GPU_BACKENDS)
@pytest.mark.parametrize("name", OPS)
def test_runs_on_the_current_stream(name, backend):
    """Work queued ahead on a side stream must be finished before the op reads its input."""
    args = next(spec_of(name).inputs((64, 4096), lambda *s: torch.randn(s, device="cuda")))
    changed = tuple(a + 1 if isinstance(a, Tensor) else a for a in args)
    want = getattr(ops, name)(*changed, backend=backend)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        for a in args:
            if isinstance(a, Tensor):
                a.add_(1)
        got = getattr(ops, name)(*args, backend=backend)
    stream.synchronize()
    torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("backend", GPU_BACKENDS)
@pytest.mark.parametrize("name", OPS)
def test_replays_in_a_cuda_graph(name, backend):
    make = lambda *s: torch.randn(s, device="cuda")  # noqa: E731
    args = next(spec_of(name).inputs((8, 512), make))
    getattr(ops, name)(*args, backend=backend)  # compile outside of the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = getattr(ops, name)(*args, backend=backend)
    for a in args:
        if isinstance(a, Tensor):
            a.copy_(make(*a.shape))
    graph.replay()
    torch.cuda.synchronize()
    want = getattr(ops, name)(*args, backend=backend)
    torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("backend", GPU_BACKENDS)
@pytest.mark.parametrize("odd", [0, 1], ids=["packed", "element by element"])
def test_more_than_2_31_elements(backend, odd):
    width, rows = 4096 + odd, (1 << 19) + 3
    x = torch.zeros(rows, width, dtype=torch.bfloat16, device="cuda")
    assert x.numel() > 1 << 31
    x[-1] = torch.randn(width, device="cuda")
    bias = torch.randn(width, device="cuda").bfloat16()
    last = fused_add_gelu(x, bias, backend=backend)[-1]
    torch.testing.assert_close(last, fused_add_gelu(x[-1], bias, backend="reference"))
    last = element_wise_mul_add(x, bias, x[-1], backend=backend)[-1]
    torch.testing.assert_close(last, element_wise_mul_add(x[-1], bias, x[-1], backend="reference"))
    last = fused_residual_rmsnorm(x, x, bias, backend=backend)[0][-1]
    want = fused_residual_rmsnorm(x[-1], x[-1], bias, backend="reference")[0]
    torch.testing.assert_close(last, want)


@pytest.mark.parametrize("name", OPS)
def test_arguments_on_different_devices(name):
    args = next(spec_of(name).inputs((3, 8), lambda *s: torch.randn(s, device="cuda")))
    with pytest.raises(ValueError, match="is on cpu; must be on cuda:0"):
        getattr(ops, name)(args[0], args[1].cpu(), *args[2:])
    with pytest.raises(RuntimeError):  # past the wrapper
        getattr(torch.ops.gossamer, name)(args[0], args[1].cpu(), *args[2:])
    getattr(ops, name)(*args)
    torch.cuda.synchronize()  # the device is still usable
