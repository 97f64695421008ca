"""What the operators of a graph are: GEMMs, activations, gates, residuals, norms, attention."""

from dataclasses import dataclass

from torch.fx import Node


@dataclass(frozen=True, eq=False)
class Operator:
    """nodes: all that it consists of, `out` the last of them."""

    out: Node
    nodes: tuple[Node, ...]

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()


@dataclass(frozen=True, eq=False)
class Gemm(Operator):
    """x @ weight.T + bias, or x @ weight where `transposed`: weight lies as [k, n]."""

    x: Node
    weight: Node
    bias: Node | None
    transposed: bool = False


@dataclass(frozen=True, eq=False)
class Activation(Operator):
    x: Node
    name: str


@dataclass(frozen=True, eq=False)
class Gate(Operator):
    """activated * other."""

    activated: Node
    other: Node


@dataclass(frozen=True, eq=False)
class Residual(Operator):
    a: Node
    b: Node


@dataclass(frozen=True, eq=False)
class Norm(Operator):
    """norm: "rms" or "layer"."""

    x: Node
    weight: Node
    bias: Node | None
    eps: float
    norm: str


@dataclass(frozen=True, eq=False)
class Attention(Operator):
    """softmax(scale q k + mask) v. mask: a bool or additive node, or None; causal: besides it."""

    q: Node
    k: Node
    v: Node
    mask: Node | None
    causal: bool
    scale: float
