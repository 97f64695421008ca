"""What of a graph is known before it runs: masks made of index ranges, buffers and numbers."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node

from gossamer.fusion.patterns import tensor_of

_IN_PLACE = {
    *(operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv),
    *(operator.iand, operator.ior, operator.ixor, operator.ipow, operator.imod, operator.setitem),
}
_RANDOM = ("rand", "bernoulli", "multinomial", "normal", "dropout", "uniform", "exponential")


class Constants:
    """Values of nodes that depend on no input of the user; parameters do not count as constant.

    static: real values of inputs that are parameters or buffers of the model. `used` are the
    buffers that a value was made of: it holds as long as they do.
    """

    def __init__(self, graph: Graph, static: Mapping[Node, Tensor]) -> None:
        self.static = static
        self.buffers = {n: t for n, t in static.items() if not isinstance(t, nn.Parameter)}
        self.used: set[Node] = set()
        self._written = _written(graph)
        self._values: dict[Node, Any] = {}
        self._constant: dict[Node, bool] = {}
        for node in graph.nodes:
            self._constant[node] = self._is_constant(node)

    def holds(self, node: Node) -> bool:
        """Whether the value is known."""
        return self._constant[node]

    def value(self, node: Node) -> Any:
        """The real value of a node that `holds`."""
        with torch.no_grad():
            return self._evaluate(node)

    def _is_constant(self, node: Node) -> bool:
        if node.op == "placeholder":
            return node in self.buffers and node not in self._written
        if node.op not in ("call_function", "call_method") or node in self._written:
            return False
        if any(word in str(node.target).lower() for word in _RANDOM):
            return False
        return all(self._constant[n] for n in node.all_input_nodes)

    def _evaluate(self, node: Node) -> Any:
        if node in self._values:
            return self._values[node]
        if node.op == "placeholder":
            self.used.add(node)
            found: Any = self.buffers[node]
        else:
            args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), self._evaluate)
            if node.op == "call_method":
                found = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                target: Callable[..., Any] = node.target  # type: ignore[assignment]
                found = target(*args, **kwargs)
        self._values[node] = found
        return found


def _written(graph: Graph) -> set[Node]:
    """Nodes that write, and whatever they may write to: their arguments could be views of it."""
    found: set[Node] = set()
    waiting = [node for node in graph.nodes if writes(node)]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def writes(node: Node) -> bool:
    """Whether a node writes to one of its arguments."""
    if node.op == "call_method":
        return str(node.target).endswith("_") and not str(node.target).endswith("__")
    if node.op != "call_function":
        return False
    if node.target in _IN_PLACE or "out" in node.kwargs or node.kwargs.get("inplace"):
        return True
    module, name = (getattr(node.target, key, "") for key in ("__module__", "__name__"))
    return str(name).endswith("_") and module != "_operator"


def static_inputs(graph: Graph, example_inputs: list[Any]) -> dict[Node, Tensor]:
    """Inputs that are parameters or buffers of the model, with their real values.

    Without those made in inference mode: nobody could see that they are written to.
    """
    found = {}
    for node, value in zip(graph.find_nodes(op="placeholder"), example_inputs, strict=True):
        known = "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {})
        real = type(value) in (Tensor, nn.Parameter) and not (value.is_meta or value.is_inference())
        if real and (known or isinstance(value, nn.Parameter)) and tensor_of(node) is not None:
            found[node] = value
    return found
