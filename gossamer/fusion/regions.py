"""Parts of a graph that are tuned by themselves: what lies between two attentions.

Layers of a model are alike, so most regions are copies of a few.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from gossamer.fusion.capture import Captured, capture
from gossamer.fusion.operators import Attention, Operator
from gossamer.fusion.patterns import tensor_of
from gossamer.fusion.plan import Plan
from gossamer.fusion.signature import graph_signature


@dataclass(frozen=True, eq=False)
class Region:
    """A run of operators as a graph of its own. starts: of it and of its copies in the whole.

    inputs: weights as they are, and random numbers in the shape and layout of the others.
    """

    module: GraphModule
    inputs: tuple[Any, ...]
    length: int
    starts: tuple[int, ...]

    def captured(self) -> Captured:
        """Anew, for another plan."""
        return capture(self.module, self.inputs)


def regions_of(captured: Captured) -> list[Region]:
    """All of more than one operator, the one with the most copies first."""
    found: dict[str, Region] = {}
    for places in _runs(captured.operators):
        operators = [captured.operators[i] for i in places]
        module, inputs = _extracted(captured, operators)
        name = graph_signature(module)
        known = found.get(name)
        starts = (*(known.starts if known else ()), places.start)
        if known is None:
            kinds = [each.kind for each in capture(module, inputs).operators]
            if kinds != [each.kind for each in operators]:
                continue  # something is not recognised without its surroundings
        module, inputs = (known.module, known.inputs) if known else (module, inputs)
        found[name] = Region(module, inputs, len(operators), starts)
    return sorted(found.values(), key=lambda region: -len(region.starts))


def segment_regions(captured: Captured, plan: Plan) -> list[Region]:
    """Every segment but attention as a region, equal ones once."""
    found: dict[str, Region] = {}
    for places in plan.segments:
        operators = [captured.operators[i] for i in places]
        if isinstance(operators[0], Attention):
            continue
        module, inputs = _extracted(captured, operators)
        name = graph_signature(module)
        if name in found:
            known = found[name]
            starts = (*known.starts, places.start)
            found[name] = Region(known.module, known.inputs, known.length, starts)
        elif len(capture(module, inputs).operators) == len(operators):
            found[name] = Region(module, inputs, len(operators), (places.start,))
    return list(found.values())


def _runs(operators: Sequence[Operator]) -> Iterator[range]:
    """Between attentions, those of more than one operator."""
    places = groupby(range(len(operators)), lambda i: isinstance(operators[i], Attention))
    for is_attention, run in places:
        members = list(run)
        if not is_attention and len(members) > 1:
            yield range(members[0], members[-1] + 1)


def _extracted(
    captured: Captured, operators: Sequence[Operator]
) -> tuple[GraphModule, tuple[Any, ...]]:
    """The operators and all that lies between them, as a graph, and inputs for it."""
    nodes = _between(captured.module.graph, {n for each in operators for n in each.nodes})
    graph, copies = Graph(), {}
    outside = dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in nodes)
    for node in outside:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    results = [node for node in nodes if any(user not in nodes for user in node.users)]
    graph.output(tuple(copies[node] for node in results))
    static = captured.static
    inputs = tuple(static[node] if node in static else _example(node) for node in outside)
    return GraphModule(nn.Module(), graph), inputs


def _between(graph: Graph, members: set[Node]) -> dict[Node, None]:
    """Members, and what is computed from some of them for others, in order."""
    after: set[Node] = set()
    for node in graph.nodes:
        if node in members or any(n in after for n in node.all_input_nodes):
            after.add(node)
    before: set[Node] = set()
    for node in reversed(graph.nodes):
        if node in members or any(user in before for user in node.users):
            before.add(node)
    return dict.fromkeys(node for node in graph.nodes if node in after and node in before)


def _example(node: Node) -> Any:
    """Random numbers that look like a node's value."""
    like = tensor_of(node)
    if not isinstance(like, Tensor):
        return node.meta.get("example_value")
    with torch.inference_mode(False):
        made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
        return made.normal_() if made.is_floating_point() else made.zero_()
