"""A captured graph under a plan, ready to run."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.fx import GraphModule

from gossamer.attention.candidates import Candidate
from gossamer.fusion.attention import Site, choices, lower_attention, usual
from gossamer.fusion.capture import Captured
from gossamer.fusion.constants import writes
from gossamer.fusion.explain import explain
from gossamer.fusion.lowering import Segment, describe_new, lower_segment, segments_of
from gossamer.fusion.plan import TORCH, UNFUSED, Plan
from gossamer.fusion.prepared_weights import PreparedWeights
from gossamer.ops import OPS


@dataclass(frozen=True, eq=False)
class Step:
    """A segment of a plan as it runs: operators, and the kernel that computes them."""

    segment: Segment
    kernel: str

    @property
    def kinds(self) -> str:
        return " + ".join(each.kind for each in self.segment.operators)


@dataclass(frozen=True, eq=False)
class Program:
    """module: the graph with calls of our kernels; `weights` must be refreshed before each call."""

    module: GraphModule
    weights: PreparedWeights
    plan: Plan
    steps: tuple[Step, ...]
    sites: Mapping[int, Site]
    device: torch.device

    def explain(self) -> str:
        """Segments, kernels, and microseconds: predicted, and measured where the tuner was."""
        return explain(self)


def program_of(captured: Captured, plan: Plan) -> Program:
    """The graph under this plan. Consumes `captured`: capture again for another plan."""
    module, graph = captured.module, captured.module.graph
    segments = segments_of(plan.segments, captured.operators, captured.limits, graph)
    weights = PreparedWeights(module, captured.static)
    known = set(graph.nodes)
    kernels = []
    for segment in reversed(segments):  # so that inputs are still those that operators know
        chosen = plan.kernels.get(segment.places.start)
        kernels.append(_lower(segment, chosen, captured, weights))
        describe_new(graph, known)
    graph.eliminate_dead_code(lambda node: node.is_impure() or writes(node))
    graph.lint()
    module.recompile()
    steps = tuple(Step(s, kernel) for s, kernel in zip(segments, reversed(kernels), strict=True))
    return Program(module, weights, plan, steps, captured.sites, captured.device)


def _lower(
    segment: Segment, chosen: str | None, captured: Captured, weights: PreparedWeights
) -> str:
    """The name of what computes a segment."""
    site = captured.sites.get(segment.places.start)
    if site is not None:
        return _lower_site(site, chosen, captured, weights)
    if segment.fusion is None:
        return UNFUSED
    graph, device = captured.module.graph, captured.device.type
    if not lower_segment(segment, graph, weights, device, chosen):
        return UNFUSED
    return segment.fusion.op if chosen is None else f"{segment.fusion.op} {chosen}"


def _lower_site(
    site: Site, chosen: str | None, captured: Captured, weights: PreparedWeights
) -> str:
    """The name of what computes it."""
    candidate = None
    if site.prepared is not None and chosen != TORCH:
        candidate = _candidate(site, chosen)
    lower_attention(site, candidate, captured.module.graph, weights)
    return TORCH if candidate is None else str(candidate)


def _candidate(site: Site, chosen: str | None) -> Candidate:
    """The one that was chosen where it takes the call, else the selector's."""
    known = {str(each): each for each in choices(site)} if chosen is not None else {}
    return known[chosen] if chosen in known else usual(site)


def other_kernels(segment: Segment, device: torch.device) -> list[str]:
    """Backends that may compute a fused segment instead of the usual one; none on a CPU."""
    if segment.fusion is None or segment.fusion.op not in OPS or device.type == "cpu":
        return []
    op = OPS[segment.fusion.op]
    usual_one = op.choose(device.type)
    return [b for b in op.available(device.type) if b not in ("reference", usual_one)]
