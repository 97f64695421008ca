"""RMSNorm, with the residual addition before it where there is one."""

from typing import Self, overload

import torch
from torch import Tensor, nn

from gossamer.layers.base import KernelLayer, check_same, positive
from gossamer.ops import fused_residual_rmsnorm, rmsnorm


class RMSNorm(KernelLayer):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    `norm(x)` is the norm; `norm(x, residual)` is (norm of the sum, the sum), in one pass over
    memory. x, residual: [..., hidden_size]. ValueError for sizes below 1 and eps below 0.
    """

    def __init__(
        self, hidden_size: int, eps: float = 1e-6, *, use_custom_kernels: bool = True
    ) -> None:
        super().__init__(use_custom_kernels)
        if not eps >= 0:
            raise ValueError(f"eps is {eps}; must be >= 0")
        self.weight = nn.Parameter(torch.ones(positive("hidden_size", hidden_size)))
        self.eps = eps

    @classmethod
    def with_weight(cls, weight: Tensor, eps: float, *, use_custom_kernels: bool = True) -> Self:
        """A norm around this very tensor [hidden_size]; nothing is copied."""
        norm = cls(1, eps, use_custom_kernels=use_custom_kernels)
        norm.weight = _shared(weight)
        return norm

    @classmethod
    def from_transformers(cls, module: nn.Module, *, use_custom_kernels: bool = True) -> Self:
        """In place of LlamaRMSNorm and its like; shares the weight.

        ValueError for a module that is no RMSNorm or computes another one (Gemma's 1 + weight).
        """
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        weight = getattr(module, "weight", None)
        if eps is None or not isinstance(weight, Tensor) or weight.dim() != 1:
            raise ValueError(f"{type(module).__name__} is no RMSNorm: no weight [n] or no epsilon")
        norm = cls.with_weight(weight, float(eps), use_custom_kernels=use_custom_kernels)
        check_same(module, norm, len(weight), weight)
        return norm

    @overload
    def forward(self, x: Tensor) -> Tensor: ...
    @overload
    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]: ...
    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        kernels = self.uses_kernels(x, residual)
        if residual is None:
            return rmsnorm(x, self.weight, self.eps) if kernels else self._plain(x)
        if kernels:
            return fused_residual_rmsnorm(x, residual, self.weight, self.eps)
        total = x + residual
        return self._plain(total), total

    def _plain(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}"


def _shared(weight: Tensor) -> nn.Parameter:
    if isinstance(weight, nn.Parameter):
        return weight
    return nn.Parameter(weight, requires_grad=False)
