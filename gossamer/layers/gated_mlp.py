"""The MLP of Llama and its like: down(act(gate(x)) * up(x))."""

import copy
from typing import Any, Self

import torch
from torch import Tensor, nn

from gossamer.layers.base import KernelLayer, check_same, positive
from gossamer.ops import gated_mlp
from gossamer.ops.activations import ACTIVATIONS
from gossamer.ops.checks import one_of

GATES = ("silu", "gelu", "gelu_tanh")


class GatedMLP(KernelLayer):
    """A gated MLP whose gate and up weights lie in one matrix, for one GEMM instead of two.

    `gate_proj`, `up_proj` and `down_proj` are as in transformers, so checkpoints of LlamaMLP load;
    the first two are halves of `gate_up` [2 * intermediate_size, hidden_size] and stay so when the
    module moves. activation: one of GATES. x: [..., hidden_size].
    ValueError for sizes below 1 and other activations.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        activation: str = "silu",
        bias: bool = False,
        use_custom_kernels: bool = True,
    ) -> None:
        super().__init__(use_custom_kernels)
        one_of("activation", activation, GATES)
        positive("hidden_size", hidden_size)
        positive("intermediate_size", intermediate_size)
        self.activation = activation
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=bias)
        self.gate_up: Tensor
        self.gate_up_bias: Tensor | None
        self._join()

    @classmethod
    def with_weights(
        cls,
        gate_up: Tensor,
        down: Tensor,
        gate_up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
        *,
        activation: str = "silu",
        use_custom_kernels: bool = True,
    ) -> Self:
        """An MLP around these very tensors; nothing is copied."""
        with torch.device("meta"):  # memory comes with the weights
            mlp = cls(1, 1, activation=activation, use_custom_kernels=use_custom_kernels)
        mlp._adopt(gate_up, gate_up_bias)
        mlp.down_proj = _linear_of(down, down_bias)
        return mlp

    @classmethod
    def from_transformers(cls, module: nn.Module, *, use_custom_kernels: bool = True) -> Self:
        """In place of LlamaMLP and its like; shares the weights.

        Gate and up are laid side by side once, and `module`'s own become views of that, so both
        modules go on seeing the same weights. ValueError for a module of another make.
        """
        parts: list[Any] = [getattr(module, f"{n}_proj", None) for n in ("gate", "up", "down")]
        if not all(isinstance(part, nn.Linear) for part in parts):
            raise ValueError(
                f"{type(module).__name__} is no gated MLP: gate_proj, up_proj and down_proj must "
                "be nn.Linear"
            )
        gate, up, down = parts
        activation = _gate_of(module)
        with torch.device("meta"):
            mlp = cls(1, 1, activation=activation, use_custom_kernels=use_custom_kernels)
        mlp.gate_proj, mlp.up_proj, mlp.down_proj = gate, up, down
        mlp._join()
        check_same(module, mlp, gate.in_features, gate.weight)
        return mlp

    def forward(self, x: Tensor) -> Tensor:
        if self.uses_kernels(x):
            return gated_mlp(
                x,
                self.gate_up,
                self.down_proj.weight,
                self.gate_up_bias,
                self.down_proj.bias,
                activation=self.activation,
            )
        gate = ACTIVATIONS[self.activation](self.gate_proj(x))
        down: Tensor = self.down_proj(gate * self.up_proj(x))
        return down

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        new.__dict__ = copy.deepcopy(self.__dict__, memo)  # copies every weight on its own
        new._join()
        return new

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call] # every weight on its own
        self._join()
        return self

    @torch.no_grad()
    def _join(self) -> None:
        """One matrix, of which the weights of gate and up are views; the same for the biases."""
        gate, up = self.gate_proj, self.up_proj
        self.gate_up = _joined(gate.weight, up.weight)
        self.gate_up_bias = None if gate.bias is None else _joined(gate.bias, up.bias)

    def _adopt(self, gate_up: Tensor, bias: Tensor | None) -> None:
        half = len(gate_up) // 2
        biases = (None, None) if bias is None else (bias[:half], bias[half:])
        self.gate_proj = _linear_of(gate_up[:half], biases[0])
        self.up_proj = _linear_of(gate_up[half:], biases[1])
        self.gate_up, self.gate_up_bias = gate_up, bias


def _joined(first: Tensor, second: Tensor) -> Tensor:
    whole = torch.cat((first.data, second.data))
    first.data, second.data = whole.chunk(2)
    return whole


def _linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """nn.Linear around these tensors."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear


def _gate_of(module: nn.Module) -> str:
    """The name of a module's `act_fn`, told by what it computes."""
    function = getattr(module, "act_fn", None)
    if not callable(function):
        raise ValueError(f"{type(module).__name__} has no act_fn")
    x = torch.linspace(-4, 4, 65)
    for name in GATES:
        if torch.allclose(function(x), ACTIVATIONS[name](x), rtol=1e-6, atol=1e-6):
            return name
    raise ValueError(
        f"{type(module).__name__} has activation {type(function).__name__}; "
        f"must be one of {', '.join(GATES)}"
    )
