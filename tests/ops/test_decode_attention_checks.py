"""Which calls decode_attention refuses: the same ones on every backend, eager and compiled."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.ops import OPS
from tests.ops.decode_errors import BAD_CALLS, arguments, dense_bytes, ints, k_bytes, v_bytes

OP = OPS["decode_attention"]
SIZES = st.sampled_from([0, 32, 64, 1 << 40, 31, -32])


def _padded(blocks: torch.Tensor, gap: int) -> torch.Tensor:
    wide = blocks.new_zeros(*blocks.shape[:2], blocks.shape[2] + gap)
    return wide[..., : blocks.shape[2]]


@st.composite
def _pools(draw, make):
    blocks = make(blocks=draw(st.integers(0, 5)), heads=draw(st.sampled_from([2, 2, 2, 1, 4])))
    return draw(
        st.sampled_from(
            [
                blocks,
                blocks,
                _padded(blocks, 16),
                _padded(blocks, 8),
                blocks.to("meta"),
                blocks[0:1],
            ]
        )
    )


@st.composite
def _tables(draw):
    width = draw(st.integers(0, 3))
    lines = draw(st.sampled_from([2, 2, 2, 1]))
    numbers = draw(st.lists(st.integers(-1, 5), min_size=width * lines, max_size=width * lines))
    table = ints(*numbers).view(lines, width)
    return table if draw(st.integers(0, 9)) else table.long()


CHANGES = {
    "q": st.sampled_from(
        [(2, 1, 4, 64), (2, 8, 4, 64), (2, 9, 4, 64), (2, 2, 32, 64), (2, 1, 34, 64), (2, 4, 64),
         (0, 1, 4, 64), (2, 1, 4, 72), (2, 1, 0, 64), (2, 1, 2, 64), (2, 1, 3, 64)]
    ).map(torch.zeros)
    | st.sampled_from([torch.half, torch.double]).map(torch.zeros(2, 1, 4, 64).to),
    "k_blocks": _pools(k_bytes),
    "v_blocks": _pools(v_bytes),
    "page_table": _tables(),
    "seq_lens": st.lists(st.integers(-1, 130), min_size=2, max_size=2).map(lambda x: ints(*x)),
    "dense_k": st.none() | _pools(dense_bytes),
    "dense_v": st.none() | _pools(dense_bytes),
    "dense_table": st.none() | _tables(),
    "k_keep": st.sampled_from([None, 0, 17, 20, 25, 65]),  # 17 to 24 take the same bytes
    "k_values": st.sampled_from(["fp16", "fp8_e4m3", "int4", "int5"]),
    "k_scales": st.sampled_from(["none", "channel", "group", ""]),
    "v_keep": st.sampled_from([None, 33, 41]),
    "v_values": st.sampled_from(["bf16", "fp32"]),
    "v_scales": st.sampled_from(["row", ""]),
    "dense_values": st.sampled_from(["fp16", "bf16", "fp32", "int8"]),
    "window": SIZES,
    "sink": SIZES,
    "page_size": st.sampled_from([32, 64, 96, 48, 0, -32, 1 << 40]),
    "scale": st.sampled_from([0.0, -1.0, float("nan"), float("inf")]),
    "softcap": st.sampled_from([3.0, -0.5, float("nan"), float("inf")]),
    "sliding": st.sampled_from([1, 40, 1 << 40, -1]),
}  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(data=st.data())
def test_c_plus_plus_accepts_exactly_what_check_accepts(data):
    """No bad argument slips through because the C++ checks are asked first."""
    names = data.draw(st.lists(st.sampled_from(sorted(CHANGES)), unique=True, max_size=3))
    windowed = {"dense_k", "dense_v", "dense_table", "window", "sink"} & set(names)
    changes = {name: data.draw(CHANGES[name], label=name) for name in names}
    args = arguments(windowed=bool(windowed), **changes)
    assert outcome(OP, args, backend="cpu") == outcome(OP.check, args)


def outcome(function, args, **options) -> str:
    """What went wrong, in words; "" when nothing did."""
    try:
        function(*args, **options)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("number", range(10, len(BAD_CALLS), 5))
def test_compiled_code_refuses_in_the_same_words(number):
    torch._dynamo.reset()
    args, exception, message = BAD_CALLS[number]
    assert exception is ValueError  # what is no tensor does not even trace
    compiled = torch.compile(OPS["decode_attention"], fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="decode_attention") as raised:
        compiled(*args)
    assert message in str(raised.value)
