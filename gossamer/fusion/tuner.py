"""The tuner: the best plan of a graph that can be found by timing within a budget."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule

from gossamer.attention.candidates import Candidate
from gossamer.attention.plans import plan_of
from gossamer.fusion.attention import Site, choices, random_arguments, usual
from gossamer.fusion.backend import Options
from gossamer.fusion.capture import Captured, capture
from gossamer.fusion.cost import predicted_plan
from gossamer.fusion.plan import Plan
from gossamer.fusion.program import Program, other_kernels, program_of
from gossamer.fusion.regions import Region, regions_of, segment_regions
from gossamer.fusion.remainder import GRAPHS, compile_rest
from gossamer.fusion.search import GAIN, Move, Search, search
from gossamer.fusion.timing import Clock, Show, Timer, microseconds

ROUNDS = 3  # of the whole model, plans by turns
STAGE_2 = 0.2  # of the budget, kept for kernels
RESERVE = 1.5  # of what compiling the whole model took, kept for the plan that is found


@dataclass(frozen=True)
class Tuned:
    """What was found. us: of the whole graph. seconds: where the time went. trials: by move."""

    plan: Plan
    unfused_us: float
    us: float
    seconds: dict[str, float]
    trials: dict[str, int]

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "unfused_us": round(self.unfused_us, 2),
            "us": round(self.us, 2),
            "seconds": {name: round(took, 3) for name, took in self.seconds.items()},
            "trials": self.trials,
        }


class Tuner:
    """For one graph. Everything is timed on the device, with the model's own weights."""

    def __init__(
        self,
        module: GraphModule,
        example_inputs: Sequence[Any],
        options: Options,
        budget: float,
        seed: int = 0,
        show: Show = lambda share, what: None,
        timer: Timer | None = None,
    ) -> None:
        self._module, self._inputs, self._options = module, tuple(example_inputs), options
        self._clock, self._show = Clock(budget), show
        self._timer = timer or microseconds
        self._random = random.Random(seed)
        self._trials: Counter[str] = Counter()
        self._times: dict[int, dict[str, float]] = {}  # of attentions, by candidate

    def run(self) -> Tuned:
        """Unfused first, then regions, then kernels.

        What is returned is no slower than unfused, nor than the predicted plan if there is time.
        """
        with torch.no_grad():
            captured = self._clock.timed("capture", self._captured)
            unfused = Plan.unfused(len(captured.operators))
            finalists = {unfused: self._first(unfused)}
            plan = self._found(captured)
            self._say("whole model")
            for each in (plan, predicted_plan(captured)):
                if each not in finalists and (each is plan or not self._clock.over):
                    finalists[each] = self._compiled(each)
            times = self._compared(finalists)
            best = min(times, key=lambda each: times[each])  # the first of equals: unfused
            self._clock.reserved = 0.0
            plan = self._with_times(captured, best)
        self._show(1.0, "done")
        seconds = {**self._clock.seconds, "total": self._clock.passed}
        return Tuned(plan, times[unfused], times[best], seconds, dict(self._trials))

    def _first(self, unfused: Plan) -> Callable[[], Any]:
        """The plan to beat, compiled; as much time is kept for the one that is found."""
        begun = self._clock.passed
        call = self._compiled(unfused)
        compiled = self._clock.passed - begun
        self._time(call, self._device)
        timed = self._clock.passed - begun - compiled
        self._clock.reserved = RESERVE * compiled + 3 * ROUNDS * timed
        return call

    def _found(self, captured: Captured) -> Plan:
        """The best plans of regions, then the best kernels."""
        reserved = self._clock.reserved
        self._clock.reserved += STAGE_2 * max(0.0, self._clock.budget - reserved)
        found = [each for each in map(self._searched, regions_of(captured)) if each]
        self._clock.reserved = reserved
        return _assembled(captured, found, self._kernels(captured, found))

    # ---- stage 1

    def _searched(self, region: Region) -> Search | None:
        self._say(f"{region.length} operators x {len(region.starts)}")
        return search(region, self._measured, self._random, self._note)

    def _note(self, found: Search, move: Move) -> None:
        self._trials[move.name] += 1
        self._say(f"{found.us:.0f} us, {move.name}")

    def _measured(self, region: Region, plan: Plan) -> float | None:
        if self._clock.over:
            return None
        captured = self._clock.timed("capture", region.captured)
        call = self._compile(program_of(captured, plan), region.inputs, None)
        return self._time(call, captured.device)

    # ---- stage 2

    def _kernels(self, captured: Captured, found: Sequence[Search]) -> dict[int, str]:
        """Kernels of attentions and of fused segments, those with the largest gain first."""
        kernels = self._attentions(captured)
        for each in sorted(found, key=lambda each: -each.gain):
            self._segments(each, kernels)
        return kernels

    def _segments(self, found: Search, kernels: dict[int, str]) -> None:
        region = found.region
        for place, name in _alternatives(region, found.best):
            plan = found.best.with_kernels({**found.best.kernels, place: name})
            took = self._measured(region, plan)
            if took is None:
                break
            self._trials["kernel"] += 1
            if took <= GAIN * found.us:
                found.best, found.times[plan.key] = plan, took
        for start in region.starts:
            kernels.update({start + place: name for place, name in found.best.kernels.items()})

    def _attentions(self, captured: Captured) -> dict[int, str]:
        """The fastest candidate of each; equal ones are timed once."""
        kernels: dict[int, str] = {}
        known: dict[Any, dict[str, float]] = {}
        for place, site in captured.sites.items():
            if site.prepared is None:
                continue
            args = random_arguments(site)
            key = (id(site.prepared), args.call, args.scale, site.bias is None)
            if key not in known:
                if self._clock.over:
                    break
                self._say(f"attention: {site.prepared.mask}"[:60])
                known[key] = self._attention_times(site)
            self._times[place] = times = known[key]
            kernels[place] = min(times, key=lambda name: times[name])
        return kernels

    def _attention_times(self, site: Site) -> dict[str, float]:
        """Microseconds by candidate, the selector's first; others count if they gain."""
        first = usual(site)
        times = {str(first): self._attention_us(site, first)}
        for candidate in choices(site):
            if candidate == first or self._clock.over:
                continue
            try:
                took = self._attention_us(site, candidate)
            except (RuntimeError, NotImplementedError):
                continue  # not in this build of torch
            self._trials["attention"] += 1
            if took <= GAIN * times[str(first)]:
                times[str(candidate)] = took
        return times

    def _attention_us(self, site: Site, candidate: Candidate) -> float:
        assert site.prepared is not None, "torch's own is not timed"
        args = random_arguments(site)
        run = plan_of(site.prepared, candidate, args).run
        rest = (args.bias, args.scale, 0.0)
        return self._time(lambda: run(args.q, args.k, args.v, *rest), site.prepared.device)

    def _with_times(self, captured: Captured, plan: Plan) -> Plan:
        """The plan with the times of its segments, as far as the budget goes: for `explain`."""
        measured: dict[int, float] = {}
        for place, times in self._times.items():
            name = plan.kernels.get(place, next(iter(times)))  # without one, the selector's
            measured[place] = times[name]
        for region in segment_regions(captured, plan):
            kernel = {0: plan.kernels[region.starts[0]]} if region.starts[0] in plan.kernels else {}
            took = self._measured(region, Plan(region.length, 0, kernel))
            if took is None:
                break
            measured.update(dict.fromkeys(region.starts, took))
        return replace(plan, measured=measured)

    # ---- the whole model

    def _compared(self, calls: Mapping[Plan, Callable[[], Any]]) -> dict[Plan, float]:
        """Microseconds of each, timed by turns."""
        times: dict[Plan, list[float]] = {plan: [] for plan in calls}
        for _ in range(ROUNDS):
            for plan, call in calls.items():
                times[plan].append(self._time(call, self._device))
        return {plan: min(found) for plan, found in times.items()}

    def _captured(self) -> Captured:
        options = self._options
        found = capture(self._module, self._inputs, options.mask, attention=options.attention)
        self._device = found.device
        return found

    def _compiled(self, plan: Plan) -> Callable[[], Any]:
        captured = self._clock.timed("capture", self._captured)
        return self._compile(program_of(captured, plan), self._inputs, self._options.mode)

    def _compile(
        self, program: Program, inputs: Sequence[Any], mode: str | None
    ) -> Callable[[], Any]:
        rest = (self._options.remainder, mode, program.device)
        run = self._clock.timed("compile", lambda: compile_rest(program.module, inputs, *rest))
        graphs = mode in GRAPHS

        def call() -> Any:
            if graphs:  # as torch.compile does before a call: graphs of the last one are free
                torch._dynamo.mutation_guard.GenerationTracker.generation += 1
            program.weights.refresh(inputs)
            return run(*inputs)

        self._clock.timed("compile", call)  # kernels are loaded at a first call
        return call

    def _time(self, call: Callable[[], Any], device: torch.device) -> float:
        graphs = self._options.mode in GRAPHS
        took: float = self._clock.timed("measure", lambda: self._timer(call, device, graphs))
        return took

    def _say(self, what: str) -> None:
        self._show(min(1.0, self._clock.passed / self._clock.budget), what)


def _alternatives(region: Region, plan: Plan) -> list[tuple[int, str]]:
    """Other backends for the fused segments of a region, with their first operators."""
    captured = region.captured()
    steps = program_of(captured, plan).steps
    return [
        (step.segment.places.start, name)
        for step in steps
        for name in other_kernels(step.segment, captured.device)
    ]


def _assembled(captured: Captured, found: Sequence[Search], kernels: dict[int, str]) -> Plan:
    """Plans of regions put together, for all their copies."""
    cuts = set(range(len(captured.operators) - 1))
    for each in found:
        inner = {i for i in range(each.best.boundaries) if not each.best.cuts >> i & 1}
        for start in each.region.starts:
            cuts -= {start + i for i in inner}
    return Plan(len(captured.operators), sum(1 << i for i in cuts), kernels)
