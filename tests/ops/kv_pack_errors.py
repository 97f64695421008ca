"""Calls of kv_pack that every backend must refuse, in these words."""

import torch

from gossamer.ops import BlockFormat

FMT = BlockFormat(64, 24, "int8")


def _args(**changes):
    args = {
        "x": torch.zeros(2, 3, 64),
        "blocks": torch.zeros(4, 3, FMT.nbytes, dtype=torch.uint8),
        "slots": torch.tensor([5, 40]),
        "keep": 24,
        "values": "int8",
        "scales": "row",
        "weights": None,
        "scores": None,
    }
    assert set(changes) <= set(args)
    return tuple((args | changes).values())


CHANNEL = BlockFormat(64, 24, "int4", "channel")
BY_CHANNEL = {
    "x": torch.zeros(32, 3, 64),
    "blocks": torch.zeros(4, 3, CHANNEL.nbytes, dtype=torch.uint8),
    "values": "int4",
    "scales": "channel",
}

BAD_CALLS = [
    (_args(x=None), TypeError, "kv_pack: x is NoneType; must be a torch.Tensor"),
    (
        _args(x=torch.zeros(2, 3, 64).int()),
        TypeError,
        "kv_pack: x has dtype int32; must be one of float32, float16, bfloat16",
    ),
    (
        _args(x=torch.zeros(2, 64)),
        ValueError,
        "kv_pack: x has 2 dimensions; must have 3: tokens, heads, head_dim",
    ),
    (
        _args(x=torch.zeros(2, 3, 60)),
        ValueError,
        "kv_pack: head_dim is 60; must be a multiple of 8 from 8 to 256",
    ),
    (
        _args(x=torch.zeros(2, 3, 264)),
        ValueError,
        "kv_pack: head_dim is 264; must be a multiple of 8 from 8 to 256",
    ),
    (_args(keep=0), ValueError, "kv_pack: keep is 0; must be 1 to 64, the head_dim"),
    (_args(keep=65), ValueError, "kv_pack: keep is 65; must be 1 to 64, the head_dim"),
    (
        _args(values="int5"),
        ValueError,
        "kv_pack: values is 'int5'; must be one of "
        "fp32, fp16, bf16, fp8_e4m3, int8, int4, int3, int2",
    ),
    (
        _args(scales="none"),
        ValueError,
        "kv_pack: scales is 'none'; must be 'row' or 'channel' for sparse int8",
    ),
    (
        _args(scales="group"),
        ValueError,
        "kv_pack: scales is 'group'; must be 'row' or 'channel' for sparse int8",
    ),
    (
        _args(x=torch.zeros(2, 3, 80), keep=None, values="int4", scales="group"),
        ValueError,
        "kv_pack: head_dim is 80; must be a multiple of 32 for scales 'group'",
    ),
    (
        _args(keep=None, values="5x64", scales="none"),
        ValueError,
        "kv_pack: '5x64' has 5 bits; must be 8, 4, 3, 2 or 0",
    ),
    (
        _args(keep=None, values="4x40+2x20", scales="none"),
        ValueError,
        "kv_pack: '2x20' has 20 channels; must be a multiple of 8",
    ),
    (
        _args(keep=None, values="8x16+4x40", scales="none"),
        ValueError,
        "kv_pack: values is '8x16+4x40', which is 56 channels; must add up to 64, the head_dim",
    ),
    (
        _args(keep=None, values="8x16+x48", scales="none"),
        ValueError,
        "kv_pack: bits are '8x16+x48'; must be like 8x16+4x40+2x8: bits x channels, and so on",
    ),
    (
        _args(keep=None, values="0x64", scales="none"),
        ValueError,
        "kv_pack: bits are '0x64'; must be more than 0 somewhere",
    ),
    (
        _args(values="4x64", scales="none"),
        ValueError,
        "kv_pack: values is '4x64'; must be one type where rows are sparse",
    ),
    (
        _args(keep=None, values="4x64", scales="group"),
        ValueError,
        "kv_pack: scales is 'group'; must be 'none' or 'row' for dense 4x64",
    ),
    (
        _args(blocks=torch.zeros(4, 3, FMT.nbytes)),
        TypeError,
        "kv_pack: blocks has dtype float32; must be uint8",
    ),
    (
        _args(blocks=torch.zeros(4, 3, 5, dtype=torch.uint8)),
        ValueError,
        f"kv_pack: blocks has shape [4, 3, 5]; must be [blocks, heads, {FMT.nbytes}], "
        "the bytes of a block of this format",
    ),
    (
        _args(blocks=torch.zeros(4, 2, FMT.nbytes, dtype=torch.uint8)),
        ValueError,
        f"kv_pack: blocks has shape [4, 2, {FMT.nbytes}]; must be [4, 3, {FMT.nbytes}], "
        "with x's heads",
    ),
    (_args(slots=[5, 40]), TypeError, "kv_pack: slots is list; must be a torch.Tensor"),
    (
        _args(slots=torch.tensor([5, 40], dtype=torch.int32)),
        TypeError,
        "kv_pack: slots has dtype int32; must be int64",
    ),
    (
        _args(slots=torch.tensor([5])),
        ValueError,
        "kv_pack: slots has shape [1]; must be [2], one for each row of x",
    ),
    (
        _args(weights=torch.zeros(64)),
        ValueError,
        "kv_pack: weights has shape [64]; must be [3, 64], heads and head_dim of x",
    ),
    (
        _args(scores=torch.zeros(2, 3, 64).half()),
        TypeError,
        "kv_pack: scores has dtype float16; must be float32",
    ),
    (
        _args(weights=torch.zeros(3, 64), scores=torch.zeros(2, 3, 64)),
        ValueError,
        "kv_pack: weights and scores are both given; must be one of them",
    ),
    (
        _args(
            keep=None,
            blocks=torch.zeros(4, 3, BlockFormat(64, None, "int8").nbytes, dtype=torch.uint8),
            weights=torch.zeros(3, 64),
        ),
        ValueError,
        "kv_pack: weights is given; must be None where nothing is left out",
    ),
    (
        _args(**BY_CHANNEL | {"x": torch.zeros(30, 3, 64), "slots": torch.arange(30)}),
        ValueError,
        "kv_pack: x has 30 rows; must be a multiple of 32 for scales 'channel'",
    ),
]
SHARED = torch.zeros(1, 3, FMT.nbytes, dtype=torch.uint8).expand(4, 3, FMT.nbytes)
BAD_VALUES = [  # and strides, which do not survive a move to a GPU
    (
        _args(blocks=torch.zeros(4, 3, FMT.nbytes + 8, dtype=torch.uint8)[..., : FMT.nbytes]),
        ValueError,
        f"kv_pack: blocks has strides [{3 * (FMT.nbytes + 8)}, {FMT.nbytes + 8}, 1]; "
        "must be multiples of 16, and 1 in the last dimension",
    ),
    (
        _args(blocks=SHARED),
        ValueError,
        f"kv_pack: blocks of shape [4, 3, {FMT.nbytes}] with strides [0, {FMT.nbytes}, 1] "
        "share memory; must lie apart",
    ),
    (
        _args(slots=torch.tensor([5, 128])),
        ValueError,
        "kv_pack: a slot is 128; must be 0 to 127, or -1 for none",
    ),
    (
        _args(slots=torch.tensor([-2, 5])),
        ValueError,
        "kv_pack: a slot is -2; must be 0 to 127, or -1 for none",
    ),
    (
        _args(slots=torch.tensor([5, 5])),
        ValueError,
        "kv_pack: slot 5 is repeated; must be there once",
    ),
    (
        _args(**BY_CHANNEL | {"slots": torch.arange(32).flip(0)}),
        ValueError,
        "kv_pack: slots 31, 30, ... are not a whole block; must be 32 in order "
        "from a multiple of 32, or all -1",
    ),
    (
        _args(**BY_CHANNEL | {"slots": torch.arange(1, 33)}),
        ValueError,
        "kv_pack: slots 1, 2, ... are not a whole block; must be 32 in order "
        "from a multiple of 32, or all -1",
    ),
    (
        _args(blocks=torch.zeros(4 * 3 * FMT.nbytes + 8, dtype=torch.uint8)[8:].view(4, 3, -1)),
        ValueError,
        "kv_pack: blocks must start at a multiple of 16 bytes",
    ),
]
