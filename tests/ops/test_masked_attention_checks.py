"""Which calls the masked attention ops refuse: the same ones on every backend."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.ops import OPS
from tests.ops.masked_errors import arguments, ints, patterns, row_arguments

SHAPES = [(2, 2, 100, 64), (2, 4, 12, 64), (2, 2, 90, 64), (1, 2, 100, 64), (2, 2, 100, 32)]
HEADS = st.sampled_from(
    [torch.zeros(shape) for shape in SHAPES]
    + [
        torch.zeros(2, 2, 64, 100).transpose(2, 3),
        torch.zeros(2, 100, 2, 64).transpose(1, 2),
        torch.zeros(2, 2, 100, 64).half(),
        torch.zeros(2, 2, 100, 64, device="meta"),
        torch.zeros(2, 0, 100, 64),
        torch.zeros(2, 2, 0, 64),
    ]
)
NUMBERS = {
    "scale": st.sampled_from([0.0, -1.0, float("nan"), float("inf")]),
    "softcap": st.sampled_from([3.0, -0.5, float("nan"), float("inf")]),
    "bias": st.sampled_from([
        None, torch.zeros(100, 100), torch.zeros(100), torch.zeros(4, 1, 1), torch.zeros(2, 1, 100),
        torch.zeros(1, 1, 1, 1, 1), torch.zeros(()), torch.zeros(100).int(), torch.zeros(90),
    ]),
    "q": st.sampled_from([torch.zeros(2, 4, n, 64) for n in (100, 64, 65, 128, 129, 0)]),
    "k": HEADS,
    "v": HEADS,
}  # fmt: skip


def few(least: int, most: int, size: int):
    """Lists of about this size."""
    lists = st.lists(st.integers(least, most), min_size=size - 1, max_size=size + 1)
    return lists.map(lambda x: ints(*x)) | lists.map(lambda x: ints(*x).long())


def columns_and_kinds(size: int):
    """Two lists of this size."""
    columns = st.lists(st.integers(-1, 2), min_size=size, max_size=size)
    kinds = st.lists(st.integers(-2, 2), min_size=size, max_size=size)
    return st.tuples(columns, kinds).map(lambda x: ints(*x))


TILES = NUMBERS | {
    "offsets": few(-1, 4, 3) | st.just(ints(0, 1, 2, 2, 3)),
    "tiles": columns_and_kinds(3) | columns_and_kinds(2) | few(-1, 2, 3),
    "bits": st.tuples(
        *map(st.sampled_from, ([0, 1, 2], [0, 16, 32, 64, 96, 128, 256], [0, 1, 2, 3, 4, 8]))
    ).map(lambda shape: patterns(*shape)),
    "order": few(-1, 2, 2)
    | few(-1, 2, 2).map(lambda x: x[None, None])
    | st.sampled_from([ints([[1, 0]], [[2, 3]]), ints([[0, 1]] * 4), ints([[1, 3, 0, 2]])]),
    "work": st.sampled_from(
        [None, ints([0] * 16, [0] * 16), ints([0] * 16), ints(0), ints([1], [2])]
    ),
}
LISTS = NUMBERS | {
    "batch": st.sampled_from([0, 1, 2, 3]),
    "heads": st.sampled_from([0, 1, 4]),
    "row_offsets": few(-1, 14, 13) | st.just(ints(*range(13))),
    "keys": few(-1, 12, 20) | st.just(ints(*range(12))) | st.just(ints(*([3] * 40))),
}


def outcome(function, args, **options) -> str:
    """What went wrong, in words; "" when nothing did."""
    try:
        function(*args, **options)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def check(data, name: str, make, changes) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(changes)), unique=True, max_size=3))
    args = make(**{name: data.draw(changes[name], label=name) for name in names})
    assert outcome(OPS[name], args, backend="cpu") == outcome(OPS[name].check, args)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_c_plus_plus_accepts_exactly_what_check_accepts(data):
    """No bad argument slips through because the C++ checks are asked first."""
    check(data, "masked_attention", arguments, TILES)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_c_plus_plus_accepts_exactly_what_check_accepts_of_lists(data):
    check(data, "masked_attention_rows", row_arguments, LISTS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_limits_can_be_traced(dtype):
    """On a GPU they are a part of what torch.compile sees."""
    op = OPS["masked_attention"]
    args = op.example(lambda *size: torch.randn(size, dtype=dtype))

    def suited(*args):
        return args[0] + (1 if op.limits(*args) is None else 2)

    torch._dynamo.reset()
    compiled = torch.compile(suited, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*args), suited(*args))
    assert (op.limits(*args) is None) == (dtype is torch.float16)
