"""Runs a suite: a process for each step, each tried once; what was done is kept for later."""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import typer

from benchmarks.records import FOLDER, read_lines
from benchmarks.runs.plan import Plan, Step, load
from gossamer.bench.record import describe_device, revision

LOG = "steps.jsonl"
SLOWEST, LEAST = 10.0, 3.0  # of the estimate, and minutes: a step that takes longer is stopped
TOLD = 400  # letters of an error
LATER = "out of time"  # what a step writes that has left something for the next time


@dataclass(frozen=True)
class Outcome:
    """Of a step; a line of LOG. key: what was run, of which sources, on which device."""

    step: str
    key: str
    status: str  # ok, failed or stopped
    seconds: float
    error: str
    device: str
    revision: str


def run(name: str, output: Path, minutes: float | None = None) -> Path:
    """Measure what is not measured yet; the folder of records below `output`.

    minutes: no step is begun that would take longer than what is left of them. Raises ValueError
    for a suite that there is not, or that needs another device.
    """
    plan = load(name)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if plan.device not in ("any", device):
        raise ValueError(f"suite {plan.name} needs {plan.device}; this machine has {device}")
    if minutes is not None and minutes <= 0:
        raise ValueError(f"minutes is {minutes:g}; must be more than 0")
    folder = output / plan.name
    (folder / "results").mkdir(parents=True, exist_ok=True)
    Run(plan, device, folder).all(minutes, typer.echo)
    return folder


class Run:
    """A suite on this machine, with the log of what was done before."""

    def __init__(self, plan: Plan, device: str, folder: Path) -> None:
        self.plan, self.device, self.folder = plan, device, folder
        self.log = folder / LOG
        lines = read_lines(self.log) if self.log.is_file() else []
        self.before = [Outcome(**line) for line in lines]
        self.where = describe_device(device)

    def key(self, step: Step) -> str:
        """Equal for equal work: step, command, sources and device."""
        command = step.command(self.device, self.plan.seed, self.folder / "results")
        text = json.dumps([step.name, command, revision(), self.where])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def left(self) -> list[Step]:
        """Steps that are not done: failed ones are tried again."""
        done = {outcome.key for outcome in self.before if outcome.status == "ok"}
        return [step for step in self.plan.steps if self.key(step) not in done]

    def minutes(self, step: Step) -> float:
        """As long as it took the last time on this device, else as the suite says."""
        took = [
            o.seconds / 60 for o in self.before if (o.step, o.device) == (step.name, self.where)
        ]
        return took[-1] if took else step.minutes.get(self.device, 1.0)

    def all(self, limit: float | None, tell: Callable[[str], None]) -> None:
        """Every step that is left and fits into `limit` minutes."""
        waiting, started = self.left(), time.monotonic()
        total = len(self.plan.steps)
        done = f", {total - len(waiting)} of {total} done before" if len(waiting) < total else ""
        about = sum(map(self.minutes, waiting))
        tell(f"suite {self.plan.name} on {self.where}: about {_told(about)}{done}")
        for place, step in enumerate(waiting):
            passed = (time.monotonic() - started) / 60
            if limit is not None and place and passed + self.minutes(step) > limit:
                tell(
                    f"stopped before {step.name}, {len(waiting) - place} steps are left: run again"
                )
                return
            outcome = self.one(step)
            rest = sum(map(self.minutes, waiting[place + 1 :]))
            number = total - len(waiting) + place + 1
            told = f"{step.name}: {outcome.status}, {outcome.seconds:.0f} s"
            tell(f"[{number}/{total}] {told}; about {_told(rest)} left")
            if outcome.error:
                tell(f"  {outcome.error.splitlines()[-1]}")

    def one(self, step: Step) -> Outcome:
        """Run a step; its outcome is a line of the log, also where it failed."""
        key, start = self.key(step), time.monotonic()
        limit = 60 * max(LEAST, SLOWEST * self.minutes(step))
        status, error = self._process(step, limit)
        seconds = round(time.monotonic() - start, 1)
        outcome = Outcome(step.name, key, status, seconds, error, self.where, revision())
        with self.log.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")
        self.before.append(outcome)
        return outcome

    def _process(self, step: Step, limit: float) -> tuple[str, str]:
        """Status, and the end of what it wrote about an error."""
        command = step.command(self.device, self.plan.seed, (self.folder / "results").resolve())
        kept = os.environ | {"GOSSAMER_REVISION": revision()}
        try:
            done = subprocess.run(
                [sys.executable, *command],
                cwd=FOLDER.parent,
                env=kept,
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "stopped", f"took longer than {limit:.0f} s"
        if done.returncode == 0:
            later = LATER in done.stdout
            return ("stopped", f"{LATER}: run again for what is left") if later else ("ok", "")
        told = (done.stderr or done.stdout).strip()[-TOLD:]
        return "failed", told or f"exit code {done.returncode}"


def _told(minutes: float) -> str:
    return f"{60 * minutes:.0f} s" if minutes < 1 else f"{minutes:.0f} min"
