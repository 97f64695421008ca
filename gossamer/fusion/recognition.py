"""The operators of a graph in order.

What is not recognised (views, rotary embeddings, embeddings of tokens, ...) belongs to no operator
and is left to whoever compiles the rest.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from gossamer.fusion.attention_patterns import attention_of
from gossamer.fusion.operators import Activation, Gate, Gemm, Norm, Operator, Residual
from gossamer.fusion.patterns import Any_, Call, argument, find, inside, name_of, tensor_of
from gossamer.ops.checks import FLOAT_DTYPES


def operators_of(graph: Graph, weights: Mapping[Node, Tensor]) -> list[Operator]:
    """Operators in the order of their results. weights: parameters and buffers among the inputs."""
    found: dict[Node, Operator] = {}
    claimed: set[Node] = set()

    def claim(operator: Operator | None) -> None:
        if operator is None or claimed & set(operator.nodes):
            return
        if inside(operator.nodes, operator.out) and _supported(operator.out):
            found[operator.out] = operator
            claimed.update(operator.nodes)

    recognisers: list[Callable[[Node], Operator | None]] = [
        lambda node: _gemm(node, weights),
        attention_of,
        lambda node: _norm(node, weights),
        lambda node: _activation(node, found),
        lambda node: _gate(node, found),
    ]
    for recognise in recognisers:
        for node in graph.nodes:
            if node not in claimed:
                claim(recognise(node))
    norms = {operator.x for operator in found.values() if isinstance(operator, Norm)}
    for node in graph.nodes:
        if node not in claimed:
            claim(_residual(node, found, norms))
    place = {node: i for i, node in enumerate(graph.nodes)}
    return sorted(found.values(), key=lambda operator: place[operator.out])


def _supported(node: Node) -> bool:
    tensor = tensor_of(node)
    return tensor is not None and tensor.dtype in FLOAT_DTYPES


# ---- GEMM


def _gemm(node: Node, weights: Mapping[Node, Tensor]) -> Gemm | None:
    name = name_of(node)
    x: Any
    weight: Any
    if name == "linear":
        x, weight, bias = (argument(node, i, k) for i, k in enumerate(("input", "weight", "bias")))
        return _checked_gemm(Gemm(node, (node,), x, weight, bias), weights)
    if name == "matmul" and argument(node, 1, "other") in weights:
        x, weight = node.args[:2]
        return _checked_gemm(Gemm(node, (node,), x, weight, None, True), weights)
    if name == "view" and name_of(node.args[0]) == "addmm":
        return _conv1d(node, weights)
    return None


def _conv1d(node: Node, weights: Mapping[Node, Tensor]) -> Gemm | None:
    """GPT-2's linear layer: x as rows, addmm with a weight [k, n], and x's shape again."""
    product: Any = node.args[0]
    if len(product.args) != 3 or product.kwargs:
        return None
    bias, rows, weight = product.args
    x: Any = rows.args[0] if name_of(rows) == "view" else None
    before, after, matrix = tensor_of(x), tensor_of(node), weights.get(weight)
    if before is None or after is None or matrix is None:
        return None
    fits = before.shape[-1] == matrix.shape[0] and bias in weights
    if not fits or after.shape != (*before.shape[:-1], matrix.shape[-1]):
        return None
    nodes = (rows, product, node) if len(rows.users) == 1 else (product, node)
    return _checked_gemm(Gemm(node, nodes, x, weight, bias, True), weights)


def _checked_gemm(gemm: Gemm, weights: Mapping[Node, Tensor]) -> Gemm | None:
    """With a weight that stays, all of one dtype."""
    weight, x = weights.get(gemm.weight), tensor_of(gemm.x)
    if weight is None or x is None or weight.dim() != 2 or not x.dim() or x.dtype != weight.dtype:
        return None
    if gemm.bias is not None and (gemm.bias not in weights or weights[gemm.bias].dim() != 1):
        return None
    return gemm


# ---- activations and gates

_X = Any_("x")
# "gelu_new" of GPT-2, written out; factors may stand in any order.
_TANH = Call(
    "tanh",
    Call("mul", math.sqrt(2 / math.pi), Call("add", _X, Call("mul", 0.044715, Call("pow", _X, 3)))),
)
_GELU_TANH = Call("mul", Call("mul", 0.5, _X), Call("add", 1, _TANH))


def _activation(node: Node, found: Mapping[Node, Operator]) -> Activation | None:
    """Behind a GEMM."""
    written = find(node, _GELU_TANH) if name_of(node) == "mul" else None
    if written is not None:
        made = Activation(node, tuple(written.nodes), written.values["x"], "gelu_tanh")
    else:
        name = name_of(node)
        if name == "gelu" and argument(node, 1, "approximate", "none") == "tanh":
            name = "gelu_tanh"
        in_place = argument(node, 1, "inplace", False) is True
        if name not in ("gelu", "gelu_tanh", "silu", "relu", "mish") or in_place:
            return None
        made = Activation(node, (node,), node.args[0], name)  # type: ignore[arg-type]
    return made if isinstance(found.get(made.x), Gemm) else None


def _gate(node: Node, found: Mapping[Node, Operator]) -> Gate | None:
    """An activation times a GEMM."""
    if name_of(node) != "mul":
        return None
    for activated, other in (node.args[:2], node.args[1::-1]):
        if isinstance(found.get(activated), Activation) and isinstance(found.get(other), Gemm):  # type: ignore[arg-type]
            return Gate(node, (node,), activated, other)  # type: ignore[arg-type]
    return None


# ---- norms and residuals

_MEAN = Call("mean", Call("pow", _X, 2), -1)
_RMS = Call("mul", _X, Call("rsqrt", Call("add", _MEAN, Any_("eps"))))
_WEIGHTED = Call("mul", Any_("weight"), _RMS)


def _norm(node: Node, weights: Mapping[Node, Tensor]) -> Norm | None:
    name = name_of(node)
    if name == "mul":
        return _written_rms(node, weights)
    if name not in ("layer_norm", "rms_norm"):
        return None
    x, shape, weight = (argument(node, i, k) for i, k in enumerate(("input", "", "weight")))
    shape = argument(node, 1, "normalized_shape", shape)
    bias = argument(node, 3, "bias") if name == "layer_norm" else None
    place = 4 if name == "layer_norm" else 3
    eps = argument(node, place, "eps", 1e-5 if name == "layer_norm" else None)
    if weight not in weights or len(shape) != 1 or (bias is not None and bias not in weights):
        return None
    if eps is None:  # of F.rms_norm: that of the dtype it computes in
        eps = torch.finfo(torch.float32).eps
    norm = "layer" if name == "layer_norm" else "rms"
    return _checked_norm(Norm(node, (node,), x, weight, bias, float(eps), norm), weights)


def _written_rms(node: Node, weights: Mapping[Node, Tensor]) -> Norm | None:
    """weight * (x * rsqrt(mean(x ** 2) + eps)), as transformers writes it out."""
    match = find(node, _WEIGHTED)
    if match is None or match.values["weight"] not in weights:
        return None
    mean = next(n for n in match.nodes if name_of(n) == "mean")
    eps = match.values["eps"]
    if argument(mean, 2, "keepdim") is not True or not isinstance(eps, float):
        return None
    values = match.values
    norm = Norm(node, tuple(match.nodes), values["x"], values["weight"], None, eps, "rms")
    return _checked_norm(norm, weights)


def _checked_norm(norm: Norm, weights: Mapping[Node, Tensor]) -> Norm | None:
    """Of the last dimension, all of one dtype."""
    x, out, weight = tensor_of(norm.x), tensor_of(norm.out), weights[norm.weight]
    if x is None or out is None or weight.dim() != 1 or x.shape[-1:] != weight.shape:
        return None
    return norm if x.dtype == out.dtype == weight.dtype and x.shape == out.shape else None


def _residual(node: Node, found: Mapping[Node, Operator], norms: set[Node]) -> Residual | None:
    """An addition of a GEMM's result, or before a norm."""
    if name_of(node) != "add" or len(node.args) != 2 or node.kwargs:
        return None
    a, b = node.args
    left, right, out = tensor_of(a), tensor_of(b), tensor_of(node)
    if left is None or right is None or out is None or not left.dim():
        return None
    if not (left.shape == right.shape and left.dtype == right.dtype == out.dtype):
        return None
    near = node in norms or any(isinstance(found.get(x), Gemm) for x in (a, b))  # type: ignore[arg-type]
    return Residual(node, (node,), a, b) if near else None  # type: ignore[arg-type]
