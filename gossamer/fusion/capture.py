"""A graph of Dynamo's made ready for fusion: cleaned up, its operators and attentions known."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import SymInt, Tensor, nn
from torch.fx import GraphModule, Node

from gossamer.fusion.attention import Site, Sites
from gossamer.fusion.attention_patterns import unrecognised_attention
from gossamer.fusion.constants import Constants, static_inputs
from gossamer.fusion.legality import Limits
from gossamer.fusion.operators import Attention, Operator
from gossamer.fusion.patterns import argument, name_of, tensor_of, value_of
from gossamer.fusion.recognition import operators_of
from gossamer.masks import Mask
from gossamer.ops.checks import FLOAT_DTYPES


class NotFusibleError(Exception):
    """Why a graph is left to others, in one line."""


@dataclass(frozen=True, eq=False)
class Captured:
    """A graph, and what is known of it. sites: of the operators that are attention."""

    module: GraphModule
    static: dict[Node, Tensor]
    constants: Constants
    operators: list[Operator]
    sites: dict[int, Site]
    device: torch.device
    limits: Limits


def capture(
    module: GraphModule,
    example_inputs: Sequence[Any],
    mask: Mask | None = None,
    *,
    attention: bool = True,
) -> Captured:
    """A copy of the graph with its operators. mask: of every self-attention; attention: replace it.

    Raises NotFusibleError for graphs that fusion is not for, RuntimeError for training, ValueError
    for a mask that does not fit.
    """
    _refuse_training(module, example_inputs)
    _check_fusible(module, example_inputs)
    copy = copied(module)
    _normalise(copy)
    static = static_inputs(copy.graph, list(example_inputs))
    operators = operators_of(copy.graph, static)
    if mask is not None:
        for node in unrecognised_attention(copy.graph, operators):
            raise ValueError(
                f"a mask is set, and {node.name} looks like attention of another form; must be "
                "scaled_dot_product_attention or softmax(q k^T * scale + mask) v"
            )
    device = _device(copy, static)
    constants = Constants(copy.graph, static)
    sites = Sites(constants, operators, device, mask, attention)
    found = {i: sites.of(each) for i, each in enumerate(operators) if isinstance(each, Attention)}
    return Captured(copy, static, constants, operators, found, device, Limits.of(device))


def copied(module: GraphModule) -> GraphModule:
    """The same graph in new nodes, with what Dynamo noted of the old ones."""
    nodes: dict[Node, Node] = {}
    graph = torch.fx.Graph(tracer_cls=getattr(module.graph, "_tracer_cls", None))
    out = graph.graph_copy(module.graph, nodes, return_output_node=True)
    assert isinstance(out, tuple), "Dynamo's graphs have an output"
    graph.output(out[0])
    copy = GraphModule(module, graph)
    copy.meta = dict(module.meta)
    for old, new in nodes.items():
        if hasattr(old, "_dynamo_source"):
            new._dynamo_source = old._dynamo_source
    sources = getattr(module, "_param_name_to_source", None)
    if sources is not None:
        copy._param_name_to_source = dict(sources)  # type: ignore[assignment]
    return copy


def _refuse_training(module: GraphModule, example_inputs: Sequence[Any]) -> None:
    for node in module.graph.nodes:
        if name_of(node) == "dropout" and _drops(node):
            raise RuntimeError(
                "gossamer is for inference and the model is in training mode (dropout is on); "
                "call model.eval()"
            )
    wants = any(isinstance(x, Tensor) and x.requires_grad for x in example_inputs)
    if torch.is_grad_enabled() and wants:
        raise RuntimeError(
            "gossamer is for inference and gradients are recorded; call the model under "
            "torch.no_grad() or torch.inference_mode()"
        )


def _drops(node: Node) -> bool:
    p, training = argument(node, 1, "p", 0.5), argument(node, 2, "training", True)
    return bool(training) and p != 0


def _check_fusible(module: GraphModule, example_inputs: Sequence[Any]) -> None:
    """NotFusibleError for what plans are not made for."""
    if any(isinstance(x, nn.Parameter) and x.is_inference() for x in example_inputs):
        raise NotFusibleError(
            "its weights were made in inference mode, where nobody sees that they are written to; "
            "make the model outside of it"
        )
    if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
        raise NotFusibleError("autocast is on: fused operators want one dtype; use model.half()")
    dtypes = set()
    for node in module.graph.find_nodes(op="placeholder"):
        value = value_of(node)
        tensor = tensor_of(node)
        symbolic = isinstance(value, SymInt)
        if tensor is not None:
            symbolic = any(isinstance(size, SymInt) for size in tensor.shape)
            dtypes.add(tensor.dtype)
        if symbolic:
            raise NotFusibleError("its shapes are dynamic; compile with dynamic=False to fuse it")
    floats = {dtype for dtype in dtypes if dtype.is_floating_point}
    if floats and not floats & set(FLOAT_DTYPES):
        names = ", ".join(str(dtype) for dtype in sorted(floats, key=str))
        raise NotFusibleError(f"its dtype is {names}; fused operators take float32, 16 bits")


def _normalise(module: GraphModule) -> None:
    """Without dropout that does nothing, and without writing to what nobody else reads."""
    for node in list(module.graph.nodes):
        if name_of(node) == "dropout":
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
        elif node.target is operator.iadd and _fresh(node):
            node.target = operator.add


def _fresh(node: Node) -> bool:
    """Whether `a += b` writes to an intermediate result that nothing else uses."""
    first = node.args[0]
    before, after = tensor_of(first), tensor_of(node)
    made = isinstance(first, Node) and first.op == "call_function" and len(first.users) == 1
    same = before is not None and after is not None and before.dtype == after.dtype
    return made and same and name_of(first) in ("matmul", "mul", "add", "div", "linear")


def _device(module: GraphModule, static: dict[Node, Tensor]) -> torch.device:
    """Where the model lies. NotFusibleError for more than one place."""
    tensors = [tensor_of(node) for node in static or module.graph.find_nodes(op="placeholder")]
    found = {tensor.device for tensor in tensors if tensor is not None}
    if len(found) > 1:
        places = ", ".join(sorted(map(str, found)))
        raise NotFusibleError(f"its tensors are on {places}; fused operators want one device")
    device = next(iter(found), torch.device("cpu"))
    if device.type not in ("cpu", "cuda"):
        raise NotFusibleError(f"it is on {device}; fused operators run on cpu and cuda")
    return device
