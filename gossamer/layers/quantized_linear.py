"""A linear layer with 8-bit weights and activations (w8a8)."""

from typing import Self

import torch
from torch import Tensor, nn

from gossamer.layers.base import KernelLayer, positive
from gossamer.ops import linear_fp8, linear_int8, quantize_fp8, quantize_int8
from gossamer.ops.checks import FLOAT_DTYPES, dtype_name, one_of

# Scales of the weight and of the activations, by the name of the scheme.
SCHEMES = {
    "int8": ("row", "row"),
    "fp8": ("row", "row"),
    "fp8:tensor": ("tensor", "tensor"),
    "fp8:block": ("block", "group"),
}


class QuantizedLinear(KernelLayer):
    """x @ weight.T + bias with weights in 8 bits and activations quantized row by row on the way.

    scheme: "int8" and "fp8" (a scale for each row of x and each output channel), "fp8:tensor" (one
    each), "fp8:block" (128 x 128 blocks of the weight, groups of 128 of x). x: [..., in_features]
    of float32, float16 or bfloat16; the result has x's dtype. Made from a layer by `from_linear`;
    made by its sizes, it waits for `load_state_dict`. ValueError for other schemes and sizes.
    `use_custom_kernels=False`: weights and activations are rounded all the same, the GEMM is
    torch's.
    """

    weight: Tensor
    weight_scale: Tensor
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        scheme: str = "fp8",
        bias: bool = False,
        use_custom_kernels: bool = True,
    ) -> None:
        super().__init__(use_custom_kernels)
        one_of("scheme", scheme, SCHEMES)
        rows, columns = positive("out_features", out_features), positive("in_features", in_features)
        codes = torch.int8 if scheme == "int8" else torch.float8_e4m3fn
        blocks = {"tensor": (1,), "row": (rows, 1), "block": (-(-rows // 128), -(-columns // 128))}
        self.scheme = scheme
        self.register_buffer("weight", torch.zeros(rows, columns).to(codes))
        self.register_buffer("weight_scale", torch.ones(blocks[SCHEMES[scheme][0]]))
        self.register_buffer("bias", torch.zeros(out_features) if bias else None)

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, scheme: str = "fp8", *, use_custom_kernels: bool = True
    ) -> Self:
        """The same layer with its weight rounded to 8 bits; the bias is shared.

        ValueError for weights that are not finite, with the place of one.
        """
        layer = cls(1, 1, scheme=scheme, use_custom_kernels=use_custom_kernels)
        weight = linear.weight.detach()
        layer.weight, layer.weight_scale = _quantized(weight, scheme, SCHEMES[scheme][0])
        layer.bias = None if linear.bias is None else linear.bias.detach()
        return layer

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype not in FLOAT_DTYPES:
            raise TypeError(
                f"x has dtype {dtype_name(x.dtype)}; must be float32, float16, bfloat16"
            )
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if not self.uses_kernels(x):
            codes, scales = _quantized(x, self.scheme, SCHEMES[self.scheme][1])
            wide = _dequantized(codes, scales) @ _dequantized(self.weight, self.weight_scale).T
            return (wide if bias is None else wide + bias).to(x.dtype)
        codes, scales = self._activations(x)
        linear = linear_int8 if self.scheme == "int8" else linear_fp8
        return linear(codes, scales, self.weight, self.weight_scale, bias, x.dtype)

    def _activations(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Without a look at the numbers on a GPU, which would wait for them."""
        ops, granularity = torch.ops.gossamer, SCHEMES[self.scheme][1]
        found: tuple[Tensor, Tensor] = (
            ops.quantize_int8(x) if self.scheme == "int8" else ops.quantize_fp8(x, granularity)
        )
        return found

    def extra_repr(self) -> str:
        rows, columns = self.weight.shape
        return f"{columns}, {rows}, scheme={self.scheme}, bias={self.bias is not None}"


def _quantized(x: Tensor, scheme: str, granularity: str) -> tuple[Tensor, Tensor]:
    return quantize_int8(x) if scheme == "int8" else quantize_fp8(x, granularity)


def _dequantized(codes: Tensor, scales: Tensor) -> Tensor:
    """Codes times their scales, in float32."""
    if scales.dim() == codes.dim():
        for dim in (-2, -1):  # a scale for several rows or columns: 128, or all of them
            count, length = scales.shape[dim], codes.shape[dim]
            if 1 < count < length:
                scales = scales.repeat_interleave(128, dim).narrow(dim, 0, length)
    return codes.float() * scales
