"""Every backend of every op agrees with the float64 oracle on one shared grid of inputs."""

import pytest
import torch
from torch import Tensor

from gossamer.ops import OPS
from gossamer.ops.checks import FLOAT_DTYPES
from gossamer.ops.registry import flat
from tests.ops.spec import LAYOUTS, poison, rounding_factor, runs, spec_of


def test_this_machine_can_run_what_it_should():
    """Skipped grids must not look green: C++ and Triton work wherever the tests run."""
    triton_device = "cuda" if torch.cuda.is_available() else "cpu"
    for op in OPS.values():
        assert "cpu" not in op.backends or op.why_not("cpu", "cpu") is None
        assert "triton" not in op.backends or op.why_not("triton", triton_device) is None


@pytest.mark.gpu
def test_the_cuda_library_is_loaded_beside_a_gpu():
    for op in OPS.values():
        assert "cuda" not in op.backends or op.why_not("cuda", "cuda") is None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(("op", "backend", "device"), runs())
@pytest.mark.usefixtures("poisoned")
def test_backend_agrees_with_oracle(op, backend, device, dtype, layout):
    spec = spec_of(op)
    reused = 0

    def make(*shape: int) -> Tensor:
        return LAYOUTS[layout](torch.randn(shape, device=device).to(dtype))

    for shape in spec.shapes():
        for args in spec.inputs(shape, make):
            shapes = [r.shape for r in flat(OPS[op].reference(*args))]
            # The C++ backends allocate past torch's own poisoning: leave NaN in freed memory.
            poisoned = poison(shapes, dtype, device)
            results = flat(OPS[op](*args, backend=backend))
            reused += any(r.data_ptr() in poisoned for r in results)
            assert all(r.dtype == dtype and r.is_contiguous() for r in results)
            spec.check(results, args, rounding_factor(backend, dtype))
    assert reused > 0, "no result landed in poisoned memory"
