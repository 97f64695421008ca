"""What rope_inplace means: rope, written to where its input lies."""

import pytest
import torch

from gossamer.ops import OPS, rope, rope_inplace
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops import test_rope
from tests.ops.spec import LAYOUTS, runs

RUNS = runs("rope_inplace")


def _renamed(calls):
    return [(args, kind, text.replace("rope:", "rope_inplace:", 1)) for args, kind, text in calls]


SHARED = torch.zeros(1, 2, 8).expand(3, 2, 8)
BAD_CALLS = _renamed(test_rope.SPEC.bad_calls)
BAD_VALUES = [  # and strides, which do not survive a move to a GPU
    *_renamed(test_rope.BAD_VALUES),
    (
        (SHARED, torch.tensor([0, 4, 2]), torch.ones(5, 4), torch.zeros(5, 4), False),
        ValueError,
        "rope_inplace: elements of x of shape [3, 2, 8] with strides [0, 8, 1] share memory; "
        "must lie apart",
    ),
]


def _case(tokens, heads, head_dim, pairs, dtype, device):
    x = torch.randn(tokens, heads, head_dim, device=device).to(dtype)
    tables = torch.randn(2, 100, pairs, device=device)
    return x, torch.randint(0, 100, (tokens,), device=device), *tables.unbind()


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "expanded"])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_is_rope_where_x_lies(op, backend, device, dtype, layout):
    """Bit for bit, for all channels, some, few; around vectors; nothing else is touched."""
    for tokens, heads, head_dim, pairs in [
        (3, 5, 64, 32),
        (2, 3, 40, 9),
        (4, 2, 33, 1),
        (1, 7, 7, 3),
    ]:
        values, positions, cos, sin = _case(tokens, heads, head_dim, pairs, dtype, device)
        for interleaved in (False, True):
            want = rope(values, positions, cos, sin, interleaved=interleaved, backend=backend)
            x = LAYOUTS[layout](values)
            assert x.data_ptr() != values.data_ptr()
            rope_inplace(x, positions, cos, sin, interleaved=interleaved, backend=backend)
            assert torch.equal(x, want)
            memory = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
            assert int(memory.isfinite().sum()) == x.numel()  # the sea of NaN around it


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_queries_and_keys_inside_of_a_fused_projection(op, backend, device, interleaved):
    qkv = torch.randn(5, 12, 128, device=device).bfloat16()
    before = qkv.clone()
    _, positions, cos, sin = _case(5, 1, 128, 64, torch.bfloat16, device)
    rope_inplace(qkv[:, :10], positions, cos, sin, interleaved=interleaved, backend=backend)
    want = rope(before[:, :10], positions, cos, sin, interleaved=interleaved, backend=backend)
    assert torch.equal(qkv[:, :10], want)
    assert torch.equal(qkv[:, 10:], before[:, 10:])


@pytest.mark.parametrize("backend", OPS["rope_inplace"].available("cpu"))
def test_bad_calls_write_nothing(backend):
    for args, _, _ in test_rope.BAD_VALUES:
        x = torch.randn(args[0].shape)
        before = x.clone()
        with pytest.raises(ValueError, match="a position is"):
            rope_inplace(x, *args[1:4], backend=backend)
        assert torch.equal(x, before)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["reference", "triton", "cuda"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_a_wrong_position_on_the_gpu_makes_nan_of_its_row(backend, interleaved):
    positions = torch.tensor([0, -1, 4, 5, 1 << 62], device="cuda")
    wrong = (positions < 0) | (positions > 4)
    for head_dim, pairs in ((64, 16), (7, 3)):
        x = torch.randn(5, 3, head_dim, device="cuda")
        cos, sin = torch.randn(2, 5, pairs, device="cuda")
        want = rope(x, positions, cos, sin, interleaved=interleaved, backend="reference")
        rope_inplace(x, positions, cos, sin, interleaved=interleaved, backend=backend)
        assert x[wrong].isnan().all()
        torch.testing.assert_close(x[~wrong], want[~wrong])


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_a_graph_turns_what_lies_there_then(backend):
    x, positions, cos, sin = _case(4, 8, 128, 64, torch.float16, "cuda")
    rope_inplace(x, positions, cos, sin, backend=backend)  # compile outside of the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rope_inplace(x, positions, cos, sin, backend=backend)
    x.copy_(torch.randn_like(x))
    want = rope(x, positions, cos, sin, backend=backend)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(x, want)
