"""Segments that one of our kernels computes: what they look like, and the calls they become.

To add one: a function that looks at the operators of a segment, in `FUSIONS`.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Graph, Node
from torch.nn import functional as F

from gossamer.fusion.operators import Activation, Gate, Gemm, Norm, Operator, Residual
from gossamer.fusion.patterns import shape_of
from gossamer.fusion.prepared_weights import PreparedWeights
from gossamer.ops import OPS
from gossamer.ops.gated_mlp import ACTIVATIONS as GATES
from gossamer.ops.norm_checks import MAX_WIDTH

Emit = Callable[["Lowering"], Sequence[Node]]


@dataclass(frozen=True, eq=False)
class Lowering:
    """What a fusion needs to write its call: the graph, at the right place, and the weights."""

    graph: Graph
    weights: PreparedWeights
    device: str
    backend: str | None = None

    def op(self, name: str, *args: Any) -> Node:
        """A call of one of our ops, by the best backend or by the one that was chosen."""
        return self.graph.call_function(OPS[name].select(self.device, self.backend), args)

    def rows(self, gemm: Gemm) -> Node:
        """A GEMM's weight as [n, k]."""
        return self.weights.rows(gemm.weight, gemm.transposed)

    def items(self, made: Node, count: int) -> list[Node]:
        """The results of an op that returns several."""
        return [self.graph.call_function(operator.getitem, (made, i)) for i in range(count)]


@dataclass(frozen=True, eq=False)
class Fusion:
    """outputs: nodes of the graph that `emit` makes others for, in this order.

    op: of ours, or "linear" for torch's GEMM over weights side by side.
    """

    op: str
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    emit: Emit


def fusion_of(segment: Sequence[Operator]) -> Fusion | None:
    """The kernel of a segment; None where there is none."""
    if len(segment) < 2:
        return None
    for look in FUSIONS:
        found = look(segment)
        if found is not None and _closed(segment, found):
            return found
    return None


def _closed(segment: Sequence[Operator], fusion: Fusion) -> bool:
    """Whether nobody else uses what the kernel keeps for itself."""
    mine = {node for each in segment for node in each.nodes}
    kept = mine - set(fusion.outputs)
    return all(user in mine for node in kept for user in node.users)


def _given(*nodes: Node | None) -> tuple[Node, ...]:
    return tuple(node for node in nodes if node is not None)


def _linear_act(segment: Sequence[Operator]) -> Fusion | None:
    match segment:
        case [Gemm() as gemm, Activation() as act] if act.x is gemm.out:
            pass
        case _:
            return None

    def emit(to: Lowering) -> list[Node]:
        return [to.op("linear_act", gemm.x, to.rows(gemm), gemm.bias, act.name)]

    return Fusion("linear_act", _given(gemm.x, gemm.weight, gemm.bias), (act.out,), emit)


def _gemm_chain(segment: Sequence[Operator]) -> Fusion | None:
    match segment:
        case [Gemm() as up, Activation() as act, Gemm() as down]:
            if act.x is not up.out or down.x is not act.out:
                return None
        case _:
            return None

    def emit(to: Lowering) -> list[Node]:
        rows = to.rows(up), to.rows(down)
        return [to.op("gemm_chain", up.x, *rows, up.bias, down.bias, act.name)]

    inputs = _given(up.x, up.weight, up.bias, down.weight, down.bias)
    return Fusion("gemm_chain", inputs, (down.out,), emit)


def _gated_mlp(segment: Sequence[Operator]) -> Fusion | None:
    kinds = [type(each) for each in segment]
    if sorted(k.__name__ for k in kinds) != ["Activation", "Gate", "Gemm", "Gemm", "Gemm"]:
        return None
    by_out = {each.out: each for each in segment}
    gate = next(each for each in segment if isinstance(each, Gate))
    act, up, down = by_out.get(gate.activated), by_out.get(gate.other), segment[-1]
    if not isinstance(act, Activation) or not isinstance(up, Gemm) or not isinstance(down, Gemm):
        return None
    first = by_out.get(act.x)
    if not isinstance(first, Gemm) or first.x is not up.x or down.x is not gate.out:
        return None
    if act.name not in GATES or first is up or _width(first) != _width(up):
        return None

    def emit(to: Lowering) -> list[Node]:
        gate_up, bias = _side_by_side(to, [first, up])
        return [to.op("gated_mlp", up.x, gate_up, to.rows(down), bias, down.bias, act.name)]

    biases = _given(first.bias, up.bias, down.bias)
    inputs = (up.x, first.weight, up.weight, down.weight, *biases)
    return Fusion("gated_mlp", inputs, (down.out,), emit)


def _linear_norm(segment: Sequence[Operator]) -> Fusion | None:
    match segment:
        case [Gemm() as gemm, Residual() as residual, Norm() as norm]:
            pass
        case _:
            return None
    other = residual.b if residual.a is gemm.out else residual.a
    if gemm.out not in (residual.a, residual.b) or other is gemm.out:
        return None
    if norm.x is not residual.out or _width(gemm) > MAX_WIDTH:
        return None

    def emit(to: Lowering) -> list[Node]:
        made = to.op(
            *("linear_norm", gemm.x, to.rows(gemm), other, norm.weight, gemm.bias),
            *(norm.bias, norm.norm, norm.eps),
        )
        return to.items(made, 2)

    inputs = _given(gemm.x, gemm.weight, gemm.bias, other, norm.weight, norm.bias)
    return Fusion("linear_norm", inputs, (norm.out, residual.out), emit)


def _residual_norm(segment: Sequence[Operator]) -> Fusion | None:
    match segment:
        case [Residual() as residual, Norm() as norm] if norm.x is residual.out:
            pass
        case _:
            return None
    if shape_of(residual.out)[-1] > MAX_WIDTH:
        return None
    rms = norm.norm == "rms"
    op = "fused_residual_rmsnorm" if rms else "fused_residual_layernorm"
    rest = (norm.weight, norm.eps) if rms else (norm.weight, norm.bias, norm.eps, None)

    def emit(to: Lowering) -> list[Node]:
        made = to.op(op, residual.a, residual.b, *rest)
        return to.items(made, 2)

    inputs = _given(residual.a, residual.b, norm.weight, norm.bias)
    return Fusion(op, inputs, (norm.out, residual.out), emit)


def _joined(segment: Sequence[Operator]) -> Fusion | None:
    """GEMMs of one input, as one: Q, K and V, or gate and up."""
    gemms = [each for each in segment if isinstance(each, Gemm)]
    if len(gemms) < len(segment) or len({gemm.x for gemm in gemms}) > 1:
        return None

    def emit(to: Lowering) -> list[Node]:
        weight, bias = _side_by_side(to, gemms)
        made = to.graph.call_function(F.linear, (gemms[0].x, weight, bias))
        widths = [_width(gemm) for gemm in gemms]
        starts = [sum(widths[:i]) for i in range(len(widths))]
        parts = zip(starts, widths, strict=True)
        return [to.graph.call_method("narrow", (made, -1, start, n)) for start, n in parts]

    inputs = (gemms[0].x, *(x for gemm in gemms for x in _given(gemm.weight, gemm.bias)))
    return Fusion("linear", inputs, tuple(gemm.out for gemm in gemms), emit)


def _side_by_side(to: Lowering, gemms: Sequence[Gemm]) -> tuple[Node, Node | None]:
    weight = to.weights.joined([g.weight for g in gemms], [g.transposed for g in gemms])
    bias = to.weights.joined_biases([g.bias for g in gemms], [_width(g) for g in gemms])
    return weight, bias


def _width(gemm: Gemm) -> int:
    return shape_of(gemm.out)[-1]


FUSIONS: tuple[Callable[[Sequence[Operator]], Fusion | None], ...] = (
    _joined,
    _linear_act,
    _gemm_chain,
    _gated_mlp,
    _linear_norm,
    _residual_norm,
)
