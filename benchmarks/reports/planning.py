"""What `gossamer plan` says against what was measured, and the examples of docs/planning.md.

    python -m benchmarks.reports.planning

prints the errors; `make report` writes all tables of the page.
"""

from collections.abc import Iterable
from statistics import mean

import torch
import typer

from benchmarks.reports.engine_points import STEP, Point, model_of, points
from benchmarks.reports.gpus import FITTED_AT, fitted, later
from benchmarks.reports.markdown import table
from gossamer.planning.fleet import Demand, Fleet, fleets, replicas_needed
from gossamer.planning.gpu import GPU, load_gpu
from gossamer.planning.simulation import poisson_arrivals, simulate
from gossamer.planning.traffic import Traffic

GPU_NAME = "h200"
ERRORS = ["model", "cache", "what", "of", "measured", "planned", "error", ""]
LATENCIES = [
    *("in", "out", "cache", "requests/s", "TPOT", "played", "TTFT", "played"),
]
# Tokens in and out, the share that the prefix cache has, and what such requests are.
EXAMPLES = {
    "8b": ("llama-3-8b", Traffic(32_512, 256)),
    "8b-chat": ("llama-3-8b", Traffic(31_744, 1_024, 0.95)),
    "70b": ("llama-3-70b", Traffic(32_512, 256)),
    "70b-chat": ("llama-3-70b", Traffic(31_744, 1_024, 0.95)),
}
RATES = (50, 1_000, 10_000)
PLAYED = (
    (Traffic(1_000, 256), "dense"),
    (Traffic(4_000, 1_000), "dense:int8"),
    (Traffic(8_000, 128), "dense"),
    (Traffic(30_000, 256), "dense"),
    (Traffic(30_000, 256), "coded:23.5%"),
)
REQUESTS, SHARE = 800, 0.8


def current(point: Point) -> bool:
    """Whether it is of the engine that the constants describe."""
    return point.revision == FITTED_AT


def errors() -> str:
    """Of the engine that the constants describe."""
    return _errors(filter(current, points()))


def errors_later() -> str:
    """Of what was measured after the planner was written."""
    return _errors(filter(later, points()))


def errors_before() -> str:
    """Of older engines: how much faster or slower they were, beside the planner's own error."""
    return _errors(p for p in points() if not current(p) and not later(p))


def _errors(found: Iterable[Point]) -> str:
    on = load_gpu(GPU_NAME)
    return table(ERRORS, [_row(point, on) for point in found])


def _row(point: Point, on: GPU) -> list[str]:
    planned = point.predicted(on)
    role = point.revision
    if current(point):
        role = "fitted" if fitted(point) else "held out"
    return [
        *(point.model, f"`{point.kv}`", point.what, point.place),
        *(_time(point, point.seconds), _time(point, planned)),
        *(f"{planned / point.seconds - 1:+.1%}", role),
    ]


def _time(point: Point, seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms" if point.what == STEP else f"{seconds:.3g} s"


def latencies() -> str:
    """The closed formula against requests that come at random, played through the scheduler."""
    rows = []
    for traffic, kv in PLAYED:
        demand = _demand("llama-3-8b", traffic)
        replica = demand.replica(demand.config_of(kv), 1)
        state = replica.state(SHARE * replica.most.rate)
        tpot, ttft = _played(demand, kv, state.rate)
        rows.append(
            [
                *(f"{traffic.prompt:,}", f"{traffic.output:,}", f"`{kv}`", f"{state.rate:.3g}"),
                *(f"{1e3 * state.tpot:.1f} ms", f"{1e3 * tpot:.1f} ms"),
                *(f"{1e3 * state.ttft:,.0f} ms", f"{1e3 * ttft:,.0f} ms"),
            ]
        )
    return table(LATENCIES, rows)


def _played(demand: Demand, kv: str, rate: float) -> tuple[float, float]:
    """Mean seconds per output token and to the first one, without those of start and end."""
    traffic = demand.traffic
    arrivals = poisson_arrivals(traffic.prompt, traffic.output, rate, REQUESTS)
    replica = demand.replica(demand.config_of(kv), 1)
    played = simulate(replica.model, arrivals, demand.limits)
    served = sorted(played.served, key=lambda s: s.arrival.second)
    steady = served[REQUESTS // 5 : -REQUESTS // 10]
    return mean(s.tpot for s in steady), mean(s.ttft for s in steady)


def example(name: str) -> str:
    """GPUs by cache and rate."""
    model, traffic = EXAMPLES[name]
    demand = _demand(model, traffic)
    rows = []
    for fleet in fleets(demand):
        if isinstance(fleet, Fleet):
            each = demand.utilisation * fleet.most
            counts = (fleet.ranks * replicas_needed(rate, each) for rate in RATES)
            rows.append(
                [
                    f"`{fleet.kv}`",
                    f"{fleet.replica.sequence_bytes / 1e9:.2f} GB",
                    f"{fleet.ranks}",
                    f"{each:.3g}",
                    f"{1e3 * fleet.state.tpot:.0f} ms",
                    f"{fleet.state.busy:.0%}",
                    *(f"{count:,}" for count in counts),
                ]
            )
    columns = ["cache", "KV of a sequence", "GPUs a replica", "its requests/s", "TPOT", "prompts"]
    return table([*columns, *(f"GPUs for {rate:,}/s" for rate in RATES)], rows)


def gpus_needed(name: str, rate: float) -> dict[str, int]:
    """By cache, for one of the examples."""
    demand = _demand(*EXAMPLES[name])
    found = (fleet for fleet in fleets(demand) if isinstance(fleet, Fleet))
    return {
        str(fleet.kv): fleet.ranks * replicas_needed(rate, demand.utilisation * fleet.most)
        for fleet in found
    }


def _demand(model: str, traffic: Traffic) -> Demand:
    return Demand(
        gpu=load_gpu(GPU_NAME),
        model=model_of(model),
        dtype=torch.bfloat16,
        traffic=traffic,
        rate=RATES[0],
    )


def main() -> None:
    """Print planned times against measured ones."""
    typer.echo("\n\n".join((errors(), errors_later(), errors_before())))


if __name__ == "__main__":
    typer.run(main)
