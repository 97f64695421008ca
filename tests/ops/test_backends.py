"""How a backend is chosen, and what happens when it cannot run."""

import threading

import pytest
import torch

from gossamer.ops import BackendUnavailableError, backends, fused_add_gelu, use_backend
from gossamer.ops.registry import OPS, Op

X, BIAS = torch.randn(2, 8), torch.randn(8)
op = OPS["fused_add_gelu"]
GELU = torch.ops.gossamer.fused_add_gelu


def test_the_fastest_available_backend_is_the_default():
    assert op.select("cpu") is GELU.default


def test_an_argument_chooses():
    assert op.select("cpu", "reference") is GELU.reference


def test_the_innermost_context_chooses_and_the_argument_wins():
    with use_backend("reference"):
        assert op.select("cpu") is GELU.reference
        with use_backend("cpu"):
            assert op.select("cpu") is GELU.default
            assert op.select("cpu", "reference") is GELU.reference
        assert op.select("cpu") is GELU.reference
    assert op.select("cpu") is GELU.default


def test_the_context_is_left_on_errors():
    with pytest.raises(KeyError), use_backend("reference"):
        raise KeyError
    assert backends.chosen() == ()


def test_other_threads_keep_their_own_choice():
    seen = []
    with use_backend("reference"):
        thread = threading.Thread(target=lambda: seen.append(op.select("cpu")))
        thread.start()
        thread.join()
    assert seen == [GELU.default]


def test_a_list_of_backends_allows_a_fallback():
    with use_backend("cuda", "reference"):
        assert op.select("cpu") is GELU.reference


def test_an_unavailable_backend_says_why_and_what_there_is():
    with pytest.raises(BackendUnavailableError) as raised:
        fused_add_gelu(X, BIAS, backend="cuda")
    message = str(raised.value)
    assert message.startswith("fused_add_gelu on cpu tensors: cuda: does not run on cpu tensors. ")
    assert message.endswith(f"Available: {', '.join(op.available('cpu'))}")


@pytest.mark.parametrize(
    "call", [lambda: fused_add_gelu(X, BIAS, backend="gpu"), lambda: op.select("cpu", "gpu")]
)
def test_an_unknown_backend_is_an_error(call):
    with pytest.raises(ValueError, match="unknown backend 'gpu'; must be one of reference, cpu"):
        call()


def test_use_backend_checks_its_names_at_once():
    with pytest.raises(ValueError, match="unknown backend 'fast'"), use_backend("fast"):
        pass
    with pytest.raises(ValueError, match="at least one of"), use_backend():
        pass


def test_devices_without_kernels_run_the_reference():
    assert op.select("xpu") is GELU.reference


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.fixture
def make_op():
    """Registers ops that double their argument, and forgets them afterwards."""
    known = dict(OPS)

    def make(name: str, **options) -> Op:
        return Op(
            name,
            reference=_doubled,
            check=lambda x: None,
            fake=torch.empty_like,
            example=lambda make: (make(2),),
            **options,
        )

    yield make
    OPS.clear()
    OPS.update(known)


def test_a_missing_library_means_a_slower_backend_with_the_same_result(monkeypatch, make_op):
    monkeypatch.setitem(backends._PROBLEMS, ("cpu", "cpu"), "_C.so is not built")
    doubled = make_op("test_missing_library")
    assert doubled.available("cpu") == ("reference",)
    assert torch.equal(doubled(X), X * 2)
    assert torch.equal(torch.ops.gossamer.test_missing_library(X), X * 2)
    with pytest.raises(BackendUnavailableError, match=r"cpu: _C\.so is not built"):
        doubled(X, backend="cpu")


def test_an_op_may_have_a_reference_only(make_op):
    doubled = make_op("test_reference_only", native_backends=())
    assert doubled.backends == ("reference",)
    assert torch.equal(doubled(X), X * 2)
    assert torch.equal(torch.ops.gossamer.test_reference_only(X), X * 2)
    for backend in ("cpu", "triton"):
        with pytest.raises(BackendUnavailableError, match=f"has no {backend} backend"):
            doubled(X, backend=backend)


def test_a_library_older_than_the_op_means_a_slower_backend(make_op):
    doubled = make_op("test_old_library")
    assert "cpu" not in doubled.available("cpu")
    assert torch.equal(doubled(X), X * 2)
    with pytest.raises(BackendUnavailableError, match=r"_C\.so has no test_old_library; build it"):
        doubled(X, backend="cpu")


def test_a_process_may_leave_backends_out():
    """That it does is part of tests/docs/test_custom_kernels.py."""
    assert backends.parse_names(None) == backends.parse_names("") == backends.BACKENDS
    assert backends.parse_names("reference,triton") == ("reference", "triton")
    with pytest.raises(
        ValueError, match="GOSSAMER_BACKENDS is 'cpu,gpu'; must be some of reference"
    ):
        backends.parse_names("cpu,gpu")
