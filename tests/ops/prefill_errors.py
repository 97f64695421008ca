"""Calls of prefill_attention that every backend must refuse."""

from typing import Any

import torch

from gossamer.kernels.arguments import PrefillArguments
from gossamer.ops import OPS


def arguments(**changes: Any) -> tuple[Any, ...]:
    example = OPS["prefill_attention"].example(torch.zeros)
    return tuple(PrefillArguments(*example)._replace(**changes))


def changed(name: str, row: int, column: int, value: int) -> dict[str, torch.Tensor]:
    numbers = getattr(PrefillArguments(*arguments()), name).clone()
    numbers[row, column] = value
    return {name: numbers}


def _refused(cases: list[tuple[dict[str, Any], type[Exception], str]]) -> list[Any]:
    return [
        (arguments(**changes), error, f"prefill_attention: {text}")
        for changes, error, text in cases
    ]


NEAR = PrefillArguments(*arguments()).k.shape[0]
Q, K = torch.zeros(135, 4, 64), torch.zeros(NEAR, 2, 64)
BAD_CALLS = _refused(
    [
        ({"q": [1.0]}, TypeError, "q is list; must be a torch.Tensor"),
        ({"q": Q.half()}, TypeError, "k has dtype float32; must be float16, the dtype of q"),
        ({"q": Q[0]}, ValueError, "q has 2 dimensions; must have 3: tokens, heads, head_dim"),
        (
            {"k": K[..., :32]},
            ValueError,
            f"k has shape [{NEAR}, 2, 32]; must be [keys, kv_heads, 64], head_dim as in q",
        ),
        (
            {"v": K[:5]},
            ValueError,
            f"v has shape [5, 2, 64]; must be [{NEAR}, 2, 64], the shape of k",
        ),
        (
            {"q": Q[:, :3]},
            ValueError,
            "q has 3 heads and k 2; must be a multiple of those of k",
        ),
        ({"far_v": None}, ValueError, "far_k and far_v must be given together"),
        (
            {"far_k": K[:, :1], "far_v": K[:, :1]},
            ValueError,
            f"far_k has shape [{NEAR}, 1, 64]; must be [{NEAR}, 2, 64], heads as in k",
        ),
        (
            {"q": torch.zeros(135, 4, 128)[..., ::2]},
            ValueError,
            "q has strides [512, 128, 2]; the last one must be 1",
        ),
        (
            {"sequences": torch.zeros(2, 7)},
            TypeError,
            "sequences has dtype float32; must be int32",
        ),
        (
            {"tiles": torch.zeros(2, 3, dtype=torch.int32)},
            ValueError,
            "tiles has shape [2, 3]; must be [tiles, 2]",
        ),
        ({"scale": 0.0}, ValueError, "scale is 0.0; must be finite and > 0"),
        (
            {"window": 40},
            ValueError,
            "window is 40; must be a multiple of 32, 0 to 1073741823, or -1 for none",
        ),
        ({"sink": -32}, ValueError, "sink is -32; must be a multiple of 32, 0 to 1073741823"),
        ({"sliding": -1}, ValueError, "sliding is -1; must be 0 to 1073741823"),
    ]
)
BAD_VALUES = _refused(
    [
        (
            changed("sequences", 1, 0, 131),
            ValueError,
            "query rows are 131 to 135; must be some of the 135 there are",
        ),
        (
            changed("sequences", 1, 5, 101),
            ValueError,
            "sequence 1 begins at 100 with edge 101; must be 0 or more, "
            "and an edge from 0 to there",
        ),
        (
            changed("sequences", 0, 4, 131),
            ValueError,
            "sequence 0 has 131 near rows; must be 130",
        ),
        (
            changed("sequences", 0, 3, -1),
            ValueError,
            f"near rows are -1 to 128; must be some of the {NEAR} there are",
        ),
        (
            changed("tiles", 0, 0, 2),
            ValueError,
            "a sequence of tiles is 2; must be 0 to 1",
        ),
        (
            changed("tiles", 0, 1, 7),
            ValueError,
            "tiles must name every 128 queries of every sequence once",
        ),
    ]
)
