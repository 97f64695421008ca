"""Every backend of every op agrees with the float64 oracle on one shared grid of inputs."""

import pytest
import torch
from torch import Tensor

from gossamer.ops import OPS
from tests.ops.spec import DTYPES, LAYOUTS, rounding_factor, runs, spec_of, tolerance


def test_this_machine_can_run_what_it_should():
    """Skipped grids must not look green: C++ and Triton work wherever the tests run."""
    for op in OPS.values():
        assert op.why_not("cpu", "cpu") is None
        triton_device = "cuda" if torch.cuda.is_available() else "cpu"
        assert op.why_not("triton", triton_device) is None


@pytest.mark.gpu
def test_the_cuda_library_is_loaded_beside_a_gpu():
    for op in OPS.values():
        assert op.why_not("cuda", "cuda") is None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("op", "backend", "device"), runs())
@pytest.mark.usefixtures("poisoned")
def test_backend_agrees_with_oracle(op, backend, device, dtype, layout):
    spec = spec_of(op)

    def make(*shape: int) -> Tensor:
        return LAYOUTS[layout](torch.randn(shape, device=device).to(dtype))

    for shape in spec.shapes():
        for args in spec.inputs(shape, make):
            results = flat(OPS[op](*args, backend=backend))
            wide = [a.double() if isinstance(a, Tensor) else a for a in args]
            oracles = flat(OPS[op].reference(*wide))
            for got, want, magnitude, roundings in zip(
                results, oracles, spec.magnitude(*wide), spec.roundings, strict=True
            ):
                assert got.dtype == dtype
                assert got.shape == want.shape
                assert got.is_contiguous()
                allowed = tolerance(
                    want, magnitude, dtype, roundings * rounding_factor(backend, dtype)
                )
                wrong = ~((got.double() - want).abs() <= allowed)  # NaN is wrong too
                assert not wrong.any(), describe(wrong, got, want, allowed, shape)


def describe(wrong, got, want, allowed, shape) -> str:
    first = tuple(wrong.nonzero()[0].tolist())
    return (
        f"{int(wrong.sum())} of {wrong.numel()} wrong at shape {shape}; first at {first}: "
        f"{got[first].item()} instead of {want[first].item()} +- {allowed[first].item():.3g}"
    )


def flat(result) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)
