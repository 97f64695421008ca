"""Every op is a well-behaved torch op: schema, tracing, compilation, export, errors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from gossamer import ops
from gossamer.ops import OPS, use_backend
from gossamer.ops.backends import chosen
from gossamer.ops.registry import flat
from tests.ops.spec import bad_calls_of, bad_values_of, example, spec_of, specified

SPECIFIED = specified()
RUNS = [(name, backend) for name, op in OPS.items() for backend in op.available("cpu")]
GPU_RUNS = [(name, backend) for name, op in OPS.items() for backend in op.available("cuda")]


@pytest.mark.parametrize("name", OPS)
def test_native_schema_is_the_signature_of_the_reference(name):
    declared = str(getattr(torch.ops.gossamer, name).default._schema)
    inferred = str(torch._C.parse_schema(f"gossamer::{name}{OPS[name].schema}"))
    assert declared == inferred


def opcheck(overload, args):
    """All of torch's checks; for float8 not that of the schema, which multiplies arguments by 1."""
    checks = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    if not any(isinstance(a, Tensor) and a.dtype is torch.float8_e4m3fn for a in args):
        checks.append("test_schema")
    torch.library.opcheck(overload, args, test_utils=checks)


@pytest.mark.parametrize(("name", "backend"), RUNS)
def test_opcheck(name, backend):
    opcheck(OPS[name].select("cpu", backend), example(name))


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "backend"), GPU_RUNS)
def test_opcheck_on_the_gpu(name, backend):
    opcheck(OPS[name].select("cuda", backend), example(name, "cuda"))


def model_of(name: str, backend: str | None = None):
    """A function of the op's arguments with more than the op in it."""

    def model(*args):
        return OPS[name].outputs(*args, backend=backend)[0].float() * 2  # float8 has no product

    return model


@pytest.mark.parametrize(("name", "backend"), RUNS)
def test_compiles_to_one_graph(name, backend):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    model = model_of(name, backend)
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    args = example(name)
    torch.testing.assert_close(compiled(*args), model(*args))
    targets = [node.target for node in counter.graphs[0].graph.nodes]
    assert OPS[name].select("cpu", backend) in targets


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "backend"), GPU_RUNS)
def test_compiles_with_inductor_on_the_gpu(name, backend):
    torch._dynamo.reset()
    model = model_of(name, backend)
    args = example(name, "cuda", (5, 64))
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(*args), model(*args))


@pytest.mark.parametrize("name", OPS)
def test_compiled_code_follows_use_backend(name):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(OPS[name], fullgraph=True, backend=counter)
    args = example(name)
    compiled(*args)
    with use_backend("reference"):
        compiled(*args)
    used = [
        next(n.target for n in graph.graph.nodes if n.op == "call_function")
        for graph in counter.graphs
    ]
    assert used == [OPS[name].select("cpu"), OPS[name].select("cpu", "reference")]


@pytest.mark.parametrize("name", OPS)
def test_use_backend_inside_of_compiled_code(name):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")

    def model(*args):
        with use_backend("reference"):
            return OPS[name](*args)

    torch.compile(model, fullgraph=True, backend=counter)(*example(name))
    assert OPS[name].select("cpu", "reference") in [n.target for n in counter.graphs[0].graph.nodes]
    assert chosen() == ()


def rows_of(name: str, rows: int) -> list[tuple]:
    """All kinds of arguments that the op's specification has, for [rows, 8]."""
    return list(spec_of(name).inputs((rows, 8), lambda *size: torch.randn(size)))


@pytest.mark.parametrize("name", SPECIFIED)
def test_compiles_once_for_dynamic_shapes(name):
    for kind in range(len(rows_of(name, 1))):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("eager")
        compiled = torch.compile(getattr(ops, name), fullgraph=True, backend=counter, dynamic=True)
        for rows in (5, 4, 8, 17):
            compiled(*rows_of(name, rows)[kind])
        assert counter.frame_count == 1


@pytest.mark.parametrize("name", SPECIFIED)
def test_exports_with_a_dynamic_batch(name):
    for args, others in zip(rows_of(name, 3), rows_of(name, 5), strict=True):
        tensors = tuple(a for a in args if isinstance(a, Tensor))
        rest = args[len(tensors) :]

        class Model(torch.nn.Module):
            def forward(self, *tensors):
                return getattr(ops, name)(*tensors, *rest)  # noqa: B023

        batch = torch.export.Dim("batch")
        dynamic = tuple(
            {d: batch for d in range(a.dim()) if a.shape[d] != b.shape[d]}
            for a, b in zip(tensors, others, strict=False)
        )
        program = torch.export.export(Model(), tensors, dynamic_shapes=(dynamic,))
        longer = others[: len(tensors)]
        torch.testing.assert_close(program.module()(*longer), Model()(*longer))


@pytest.mark.parametrize("name", SPECIFIED)
def test_meta_tensors_give_shapes_only(name):
    expected = getattr(ops, name)(*example(name))
    result = getattr(ops, name)(*example(name, "meta"))
    for got, want in zip(flat(result), flat(expected), strict=True):
        assert got.device.type == "meta"
        assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride())


def check_bad_calls(name: str, backend: str | None, device: str) -> None:
    bad_values = bad_values_of(name) if device == "cpu" else []
    for args, exception, message in bad_calls_of(name) + bad_values:
        moved = [
            a.to(device) if isinstance(a, Tensor) and a.device.type == "cpu" else a for a in args
        ]
        with pytest.raises(exception) as raised:
            OPS[name](*moved, backend=backend)
        assert str(raised.value) == message.replace("must be on cpu", f"must be on {device}")
        shown_alone = raised.value.__context__ is None or raised.value.__suppress_context__
        assert shown_alone, "the user sees two exceptions"


@pytest.mark.parametrize(("name", "backend"), [*RUNS, *((name, None) for name in OPS)])
def test_bad_calls_get_the_same_words_from_every_backend(name, backend):
    check_bad_calls(name, backend, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "backend"), [*GPU_RUNS, *((name, None) for name in OPS)])
def test_bad_calls_on_the_gpu(name, backend):
    check_bad_calls(name, backend, "cuda:0")


@pytest.mark.parametrize(("name", "backend"), RUNS)
def test_gradients_are_refused(name, backend):
    """They would be lost silently. Parameters are fine where no gradient is recorded."""
    args = example(name)
    if not args[0].is_floating_point():
        pytest.skip("bytes have no gradient")
    args[0].requires_grad_()
    with pytest.raises(RuntimeError, match=f"{name} has no gradient and an argument requires one"):
        OPS[name](*args, backend=backend)
    with torch.no_grad():
        OPS[name](*args, backend=backend)
    with torch.inference_mode():
        OPS[name](*args, backend=backend)


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if "cpu" in op.backends])
def test_freed_storage_is_an_error(name):
    args = example(name)
    args[0].untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="has no memory"):
        OPS[name](*args, backend="cpu")


@pytest.mark.parametrize("name", OPS)
def test_torch_ops_called_directly_refuse_the_same_arguments(name):
    """Every overload checks its own arguments: C++ by RuntimeError, others in these words."""
    packet = getattr(torch.ops.gossamer, name)
    for args, exception, message in bad_calls_of(name) + bad_values_of(name):
        for overload in packet.overloads():
            with pytest.raises((exception, RuntimeError)) as raised:
                getattr(packet, overload)(*args)
            if type(raised.value) is exception:
                assert str(raised.value) == message


PROPERTIES = {
    "shape": st.sampled_from([(), (0,), (1,), (4,), (2, 4), (4, 2), (2, 0), (3, 2, 4)]),
    "dtype": st.sampled_from([torch.float32, torch.float32, torch.float16, torch.int64]),
    "device": st.sampled_from(["cpu", "cpu", "cpu", "meta"]),
}


@pytest.mark.parametrize("name", SPECIFIED)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_c_plus_plus_accepts_exactly_what_check_accepts(name, data):
    """No bad argument slips through because the C++ checks are asked first."""
    args = tuple(
        torch.zeros(**{k: data.draw(v) for k, v in PROPERTIES.items() if k != "shape"},
                    size=data.draw(PROPERTIES["shape"]))
        if isinstance(a, Tensor) else a
        for a in OPS[name].example(torch.zeros)
    )  # fmt: skip
    expected = outcome(OPS[name].check, args)
    assert outcome(OPS[name], args) == expected


def outcome(function, args) -> str:
    """What went wrong, in words; "" when nothing did."""
    try:
        function(*args)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("name", SPECIFIED)
def test_lazily_negated_views_are_values_like_any_other(name):
    """The imaginary part of a conjugate is a view with a negative bit."""
    make = lambda *size: torch.randn(*size, 2).view(*size, 2).contiguous()  # noqa: E731
    negated = lambda *size: torch.view_as_complex(make(*size)).conj().imag  # noqa: E731
    args = next(spec_of(name).inputs((3, 8), negated))
    assert args[0].is_neg()
    plain = tuple(a.clone().resolve_neg() if isinstance(a, Tensor) else a for a in args)
    torch.testing.assert_close(getattr(ops, name)(*args), getattr(ops, name)(*plain))


@pytest.mark.parametrize("name", SPECIFIED)
def test_a_result_too_large_for_memory_is_an_error(name):
    """A petabyte, more than any address space: an exception, not a crash."""
    make = lambda *size: torch.ones(1).expand(size)  # noqa: E731
    args = next(spec_of(name).inputs((1 << 44, 16), make))
    with pytest.raises(RuntimeError, match="out of memory: no room for a tensor of 2814"):
        getattr(ops, name)(*args)
