"""Which way a call takes: the one that looks cheapest of those that can."""

from collections.abc import Iterable

from gossamer.attention.candidates import Arguments, candidates
from gossamer.attention.coefficient_files import Coefficients, coefficients_of
from gossamer.attention.plans import Plan, empty_plan, plan_of
from gossamer.attention.prepared import PreparedMask
from gossamer.attention.ways import Way


def plan(mask: PreparedMask, args: Arguments, backend: str | None) -> Plan:
    """The plan of calls like this one. Builds maps and waits for the device."""
    if args.q.numel() == 0 or mask.kv_len == 0:
        return empty_plan(args)
    for way in ranked(mask, args, candidates(mask, args, backend)):
        found = plan_of(mask, way, args)
        if way.kernel != "sdpa" or _runs(found, args):
            return found
    raise RuntimeError("masked_attention: no kernel takes this call")  # one of ours always does


def ranked(
    mask: PreparedMask,
    args: Arguments,
    ways: Iterable[Way],
    coefficients: Coefficients | None = None,
) -> list[Way]:
    """Cheapest first; those of which nothing is known behind, in the order given."""
    known = coefficients or coefficients_of(mask.device)
    costs = {way: cost for way in ways for cost in [_cost(mask, args, way, known)]}
    return sorted(costs, key=lambda way: costs[way])


def _cost(mask: PreparedMask, args: Arguments, way: Way, known: Coefficients) -> float:
    if not known.known and (way.kernel == "rows" or way.backend == "mask"):
        return float("inf")  # a gamble on a device that nobody measured
    facts = mask.facts(way.tile if way.kernel == "block" else (64, 64))
    return known.model.rank(way, args.call, facts)


def _runs(found: Plan, args: Arguments) -> bool:
    """Whether torch's kernel is there: builds and versions differ in what they refuse, and when."""
    try:
        out, _ = found.run(args.q, args.k, args.v, None, args.scale, 0.0)
    except (RuntimeError, NotImplementedError):
        return False
    return out.shape == args.q.shape
