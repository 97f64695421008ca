"""From a plan to a graph: segments become calls of our kernels, the rest stays as it is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from gossamer.fusion.constants import writes
from gossamer.fusion.kernels import Fusion, Lowering, fusion_of
from gossamer.fusion.legality import Limits, why_illegal
from gossamer.fusion.operators import Operator
from gossamer.fusion.patterns import value_of
from gossamer.fusion.prepared_weights import PreparedWeights


@dataclass(frozen=True, eq=False)
class Segment:
    """Operators from..to of a plan, and the kernel that computes them; None: they stay apart."""

    places: range
    operators: tuple[Operator, ...]
    fusion: Fusion | None
    reason: str | None = None  # why there is none


def segments_of(
    segments: Iterable[range], operators: Sequence[Operator], limits: Limits, graph: Graph
) -> list[Segment]:
    """The kernel of each segment. Always succeeds: what is not legal or not known is not fused."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    found = []
    for places in segments:
        mine = tuple(operators[i] for i in places)
        reason = why_illegal(mine, limits)
        fusion = fusion_of(mine) if reason is None else None
        if fusion is not None and _place(fusion, mine, order) is None:
            fusion, reason = None, "its inputs are not there in time"
        if fusion is None and reason is None and len(mine) > 1:
            reason = "no kernel computes these"
        found.append(Segment(places, mine, fusion, reason))
    return found


def lower_segment(
    segment: Segment, graph: Graph, weights: PreparedWeights, device: str, backend: str | None
) -> bool:
    """Write the kernel's call into the graph, in place of the operators; last segments first.

    False where there is no place for it among the calls of later segments.
    """
    fusion = segment.fusion
    assert fusion is not None, "only segments with a kernel are lowered"
    order = {node: i for i, node in enumerate(graph.nodes)}
    place = _place(fusion, segment.operators, order)
    if place is None:
        return False
    with graph.inserting_before(place):
        made = fusion.emit(Lowering(graph, weights, device, backend))
    for old, new in zip(fusion.outputs, made, strict=True):
        old.replace_all_uses_with(new)
    erase(graph, [node for each in segment.operators for node in each.nodes])
    return True


def describe_new(graph: Graph, known: set[Node]) -> None:
    """Note what nodes look like that are not known yet, which also checks their arguments."""
    new = [node for node in graph.nodes if node not in known]
    if not new:
        return
    values = [value_of(n) for n in graph.find_nodes(op="placeholder")]
    # Not `detect_fake_mode`, which finds the one that is made for the backend.
    mode = next(value.fake_mode for value in values if isinstance(value, FakeTensor))
    for node in new:
        _describe(node, mode)
    known.update(new)


def _describe(node: Node, mode: FakeTensorMode) -> None:
    if node.op == "get_attr":
        tensor = getattr(node.graph.owning_module, str(node.target))
        node.meta["example_value"] = mode.from_tensor(tensor, static_shapes=True)
        return
    args, kwargs = map_arg((node.args, dict(node.kwargs)), value_of)
    call = getattr(args[0], str(node.target)) if node.op == "call_method" else node.target
    with mode:
        args = args[1:] if node.op == "call_method" else args
        node.meta["example_value"] = call(*args, **kwargs)  # type: ignore[operator]


def erase(graph: Graph, nodes: Iterable[Node]) -> None:
    """Those of the nodes that nobody uses any more, last ones first."""
    mine = set(nodes)
    for node in reversed(graph.nodes):
        if node in mine and not node.users:
            graph.erase_node(node)


def _place(fusion: Fusion, operators: Sequence[Operator], order: dict[Node, int]) -> Node | None:
    """Where a call has all its inputs, and comes before all users of its results.

    Either at the first of its nodes or at the last; None where neither does, or where something in
    between writes to a tensor.
    """
    mine = sorted({node for each in operators for node in each.nodes}, key=order.__getitem__)
    nodes = list(order)
    if any(writes(node) for node in nodes[order[mine[0]] : order[mine[-1]] + 1]):
        return None
    users = [u for out in fusion.outputs for u in out.users if u not in mine]
    for place in (mine[0], mine[-1]):
        ready = all(order[node] < order[place] for node in fusion.inputs)
        if ready and all(order[place] < order[user] for user in users):
            return place
    return None
