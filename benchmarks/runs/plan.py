"""A suite as its file declares it: steps, each a module of benchmarks with its options.

    about = "what it is for"
    device = "any"            # or cpu, cuda
    seed = 0

    [[step]]
    name = "masks"
    module = "benchmarks.suites.masked_sweep"
    arguments = ["{device}"]  # in their order
    minutes = { cpu = 0.5, cuda = 0.2 }
    options = { masks = ["causal", "stof-bigbird"], tokens = [128, 512], quick = true }

{device}, {seed}, {results} and {folder} (of the run, which holds results/) stand for what the run
has. A list is an option that is repeated, and `--results FOLDER` comes by itself, but to a step
whose options have {folder}.
"""

import importlib.util
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
DEVICES = ("any", "cpu", "cuda")


@dataclass(frozen=True)
class Step:
    """One process. minutes: about how long, by kind of device."""

    name: str
    module: str
    minutes: dict[str, float]
    arguments: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def command(self, device: str, seed: int, results: Path) -> list[str]:
        """Arguments of python."""
        known = {"device": device, "seed": seed, "results": results, "folder": results.parent}
        made = ["-m", self.module, *(text.format(**known) for text in self.arguments)]
        for name, value in self.options.items():
            flag = f"--{name.replace('_', '-')}"
            if isinstance(value, bool):
                made += [flag] * value
            else:
                for each in value if isinstance(value, list) else [value]:
                    made += [flag, str(each).format(**known)]
        if any("{folder}" in str(value) for value in self.options.values()):
            return made
        return [*made, "--results", str(results)]


@dataclass(frozen=True)
class Plan:
    """A suite. device: what it needs."""

    name: str
    about: str
    device: str
    seed: int
    steps: tuple[Step, ...]


def known() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str) -> Plan:
    """A suite by its name, or by the path of its file. Raises ValueError for what is none."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        raise ValueError(
            f"there is no suite {name!r}; must be {', '.join(known())}, or a .toml file"
        )
    try:
        values = tomllib.loads(path.read_text())
        steps = tuple(_step(path, step) for step in values.pop("step"))
        plan = Plan(path.stem, steps=steps, **values)
    except (tomllib.TOMLDecodeError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is not a suite: {error}") from None
    if plan.device not in DEVICES:
        raise ValueError(f"{path}: device is {plan.device!r}; must be {', '.join(DEVICES)}")
    names = [step.name for step in steps]
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"{path}: steps are {names}; must have names of their own")
    return plan


def _step(path: Path, values: dict[str, Any]) -> Step:
    values = dict(values, arguments=tuple(values.get("arguments", ())))
    step = Step(**values)
    try:
        found = importlib.util.find_spec(step.module)
    except ModuleNotFoundError:  # of a package above it
        found = None
    if found is None:
        raise ValueError(f"{path}: step {step.name}: there is no module {step.module!r}")
    return step
