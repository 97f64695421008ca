"""Attention in a graph: a call of SDPA, or softmax(q k^T * scale + mask) v written out."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch.fx import Graph, Node

from gossamer.fusion.operators import Attention, Operator
from gossamer.fusion.patterns import argument, name_of, tensor_of, uncast


def attention_of(node: Node) -> Attention | None:
    name = name_of(node)
    if name == "sdpa":
        return _sdpa(node)
    return _eager_attention(node) if name == "matmul" else None


def _sdpa(node: Node) -> Attention | None:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
    q, k, v, mask, dropout, causal, scale = (argument(node, i, n) for i, n in enumerate(names))
    shape = tensor_of(q)
    if shape is None or shape.dim() != 4 or dropout:
        return None
    scale = shape.shape[-1] ** -0.5 if scale is None else scale
    return Attention(node, (node,), q, _unrepeated(k), _unrepeated(v), mask, bool(causal), scale)


def _eager_attention(node: Node) -> Attention | None:
    """softmax(q k^T * scale + mask) v in separate operations."""
    nodes: list[Node] = [node]
    scores: Any
    weights, v = node.args[:2]
    softmax = uncast(weights, nodes)
    if name_of(softmax) != "softmax" or argument(softmax, 1, "dim") not in (-1, 3):
        return None
    nodes.append(softmax)
    scores, mask = uncast(softmax.args[0], nodes), None
    if name_of(scores) == "add":
        nodes.append(scores)
        scores, mask = _scores_and_mask(scores)
    scale = 1.0
    if name_of(scores) in ("mul", "div") and isinstance(scores.args[1], (int, float)):
        nodes.append(scores)
        scale = scores.args[1] if name_of(scores) == "mul" else 1 / scores.args[1]
        scores = scores.args[0]
    transposed: Any = scores.args[1] if name_of(scores) == "matmul" else None
    if name_of(transposed) != "transpose" or _dims(transposed) not in ((2, 3), (3, 2)):
        return None
    nodes += [scores] if len(transposed.users) > 1 else [scores, transposed]
    q, k = scores.args[0], transposed.args[0]
    shape = tensor_of(q)
    if shape is None or shape.dim() != 4:
        return None
    return Attention(node, tuple(nodes), q, _unrepeated(k), _unrepeated(v), mask, False, scale)


def _scores_and_mask(added: Any) -> tuple[Any, Any]:
    """Which of the two is computed from queries and keys."""
    a, b = added.args[:2]
    return (a, b) if name_of(uncast(a)) in ("mul", "div", "matmul") else (b, a)


def _dims(node: Any) -> tuple[int, ...]:
    """Of a transposition of 4 dimensions, from 0."""
    return tuple(d % 4 for d in node.args[1:3]) if len(node.args) == 3 else ()


def _unrepeated(node: Any) -> Any:
    """K or V before every head was written out for each of its group of query heads."""
    if name_of(node) not in ("reshape", "view") or name_of(node.args[0]) != "expand":
        return node
    expanded = node.args[0]
    base = expanded.args[0]
    source = getattr(base, "args", (None,))[0]
    shapes = [tensor_of(x) for x in (source, base, expanded, node)]
    if any(shape is None for shape in shapes):
        return node
    one, inserted, many, out = (tuple(shape.shape) for shape in shapes if shape is not None)
    if len(one) != 4 or len(many) != 5:
        return node
    batch, heads, length, dim = one
    grouped = inserted == (batch, heads, 1, length, dim)
    grouped = grouped and many == (batch, heads, many[2], length, dim)
    return source if grouped and out == (batch, heads * many[2], length, dim) else node


def unrecognised_attention(graph: Graph, found: Sequence[Operator]) -> Iterator[Node]:
    """Attention that is none of the operators: it would not see a mask that is set."""
    known = {node for operator in found for node in operator.nodes}
    for node in graph.nodes:
        if node in known or name_of(node) not in ("sdpa", "softmax"):
            continue
        tensor = tensor_of(node)
        if tensor is not None and tensor.dim() == 4:
            yield node
