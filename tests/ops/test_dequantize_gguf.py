"""What dequantize_gguf refuses; what it means is in test_linear_gguf.py."""

import torch

from gossamer.ops.gguf import TYPES

OP = "dequantize_gguf"
ROWS = torch.zeros(3, 40, dtype=torch.uint8)
BAD_CALLS = [
    ((None, "q4_1", torch.float32), TypeError, f"{OP}: weight is NoneType; must be a torch.Tensor"),
    (
        (ROWS.float(), "q4_1", torch.float32),
        TypeError,
        f"{OP}: weight has dtype float32; must be uint8",
    ),
    (
        (ROWS, "int4", torch.float32),
        ValueError,
        f"{OP}: type is 'int4'; must be one of {', '.join(TYPES)}",
    ),
    (
        (ROWS, "q4_0", torch.float32),
        ValueError,
        f"{OP}: weight has rows of 40 bytes; must be a multiple of 18, whole blocks of q4_0",
    ),
    (
        (ROWS, "q4_1", torch.float64),
        TypeError,
        f"{OP}: dtype is float64; must be one of float32, float16, bfloat16",
    ),
]
