"""Expressions in an FX graph, whichever of torch's names they are written with."""

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional as F

_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "add": (operator.add, torch.add),
    "mul": (operator.mul, torch.mul, torch.multiply),
    "div": (operator.truediv, torch.div, torch.true_divide),
    "pow": (operator.pow, torch.pow),
    "matmul": (operator.matmul, torch.matmul, torch.bmm),
    "mean": (torch.mean,),
    "tanh": (torch.tanh,),
    "rsqrt": (torch.rsqrt,),
    "softmax": (F.softmax, torch.softmax),
    "where": (torch.where,),
    "dropout": (F.dropout, torch.dropout),
    "linear": (F.linear,),
    "addmm": (torch.addmm,),
    "layer_norm": (F.layer_norm, torch.layer_norm),
    "rms_norm": (F.rms_norm, torch.rms_norm),
    "gelu": (F.gelu,),
    "silu": (F.silu,),
    "relu": (F.relu, torch.relu),
    "mish": (F.mish,),
    "sdpa": (F.scaled_dot_product_attention,),
    "transpose": (torch.transpose,),
}
NAMES: dict[Any, str] = {f: name for name, functions in _FUNCTIONS.items() for f in functions}
COMMUTATIVE = ("add", "mul")
CASTS = ("to", "float", "half", "bfloat16", "type_as")


def name_of(node: Any) -> str:
    """What a node computes, as one of the names above or of a method; "" for anything else."""
    if not isinstance(node, Node):
        return ""
    if node.op == "call_method":
        return str(node.target)
    return NAMES.get(node.target, "") if node.op == "call_function" else ""


def argument(node: Node, index: int, keyword: str, default: Any = None) -> Any:
    """An argument, by place or by keyword."""
    if index < len(node.args):
        return node.args[index]
    return node.kwargs.get(keyword, default)


def value_of(node: Node) -> Any:
    """The fake tensor (or number) that a node stands for."""
    return node.meta.get("example_value")


def tensor_of(node: Any) -> Tensor | None:
    """The same where it is one tensor."""
    value = value_of(node) if isinstance(node, Node) else None
    return value if isinstance(value, Tensor) else None


def shape_of(node: Node) -> torch.Size:
    """Of an operator's argument or result, which are tensors."""
    tensor = tensor_of(node)
    assert tensor is not None, f"{node} is no tensor"
    return tensor.shape


def is_cast(node: Any) -> bool:
    """A conversion to another dtype on the same device, or to none."""
    if name_of(node) not in CASTS:
        return False
    before, after = tensor_of(node.args[0]), tensor_of(node)
    return before is not None and after is not None and before.device == after.device


def uncast(node: Any, through: list[Node] | None = None) -> Any:
    """What a value was before it changed its dtype; `through` collects the conversions."""
    while is_cast(node) and _floating(node) and _floating(node.args[0]):
        if through is not None:
            through.append(node)
        node = node.args[0]
    return node


def _floating(node: Any) -> bool:
    tensor = tensor_of(node)
    return tensor is not None and tensor.is_floating_point()


@dataclass(frozen=True)
class Any_:  # noqa: N801 - `typing.Any` is another thing
    """Anything; the same everywhere in a pattern."""

    name: str


@dataclass(frozen=True, init=False)
class Call:
    """A call by name; conversions between its parts do not count."""

    name: str
    args: tuple[Any, ...]

    def __init__(self, name: str, *args: Any) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "args", args)


@dataclass
class Match:
    """What a pattern found: values by name, and the nodes of the expression."""

    values: dict[str, Any] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)


def find(node: Any, pattern: Any) -> Match | None:
    """The pattern at this node, or None."""
    found = Match()
    return found if _matches(node, pattern, found) else None


def _matches(node: Any, pattern: Any, found: Match) -> bool:
    if isinstance(pattern, (int, float)):
        number = isinstance(node, (int, float)) and not isinstance(node, bool)
        return number and math.isclose(node, pattern, rel_tol=1e-4)
    through: list[Node] = []
    node = uncast(node, through)
    found.nodes += through
    if isinstance(pattern, Any_):
        return bool(found.values.setdefault(pattern.name, node) is node)
    if name_of(node) != pattern.name or len(node.args) < len(pattern.args):
        return False
    found.nodes.append(node)
    given = node.args[: len(pattern.args)]
    orders = [given, given[::-1]] if pattern.name in COMMUTATIVE else [given]
    return any(_all_match(order, pattern.args, found) for order in orders)


def _all_match(nodes: Iterable[Any], patterns: Iterable[Any], found: Match) -> bool:
    """All of them, or nothing is noted."""
    values, count = dict(found.values), len(found.nodes)
    if all(_matches(n, p, found) for n, p in zip(nodes, patterns, strict=True)):
        return True
    found.values, found.nodes[count:] = values, []
    return False


def inside(nodes: Iterable[Node], out: Node) -> bool:
    """Whether nobody else uses what is computed on the way to `out`."""
    mine = set(nodes)
    return all(user in mine for node in mine - {out} for user in node.users)
