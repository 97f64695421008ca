"""From the words of a command line to a search, with everything checked before work begins."""

import gc
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gossamer.engine import EngineConfig
from gossamer.evaluation import plots
from gossamer.evaluation.frontier.budget import Budget
from gossamer.evaluation.frontier.candidates import Candidates
from gossamer.evaluation.frontier.kept import KIND, TASK, kept_screening
from gossamer.evaluation.frontier.measuring import Known, Measuring
from gossamer.evaluation.frontier.problem import Effort, Problem
from gossamer.evaluation.frontier.progress import Stages
from gossamer.evaluation.frontier.screening import LEAST_TOKENS, Errors, chosen_layers, screen
from gossamer.evaluation.frontier.search import SCREENING_WINDOWS, Search
from gossamer.evaluation.perplexity import Perplexity
from gossamer.evaluation.store import Point, Store
from gossamer.evaluation.subject import EngineSubject
from gossamer.evaluation.suite import check_tasks
from gossamer.evaluation.texts import is_there
from gossamer.kv import Calibration
from gossamer.models import Source, load_decoder, open_model, source_fingerprint

# Not what the shipped calibration was made of: on its own text, it would look too good.
TEXT = Path(__file__).parents[3] / "benchmarks/data/wikitext2-choose-excerpt.txt"
LEAST_CONTEXT = 2 * LEAST_TOKENS  # so that a window of 128 tokens leaves something compressed


@dataclass(frozen=True)
class Job:
    """What is wanted. engine: options of the engine, but for model and kv."""

    model: str
    budget: str
    length: int = 8192
    text: Path | None = None
    tokens: int = 16_384
    context: int = 2_048
    engine: dict[str, Any] = field(default_factory=dict)
    effort: Effort = field(default_factory=Effort)
    results: Path | None = None
    plot: Path | None = None
    output: Path | None = None


def prepare(job: Job, stages: Stages) -> Search:
    """A search that can run. ValueError, OSError or ImportError say what is wrong with the job."""
    source = open_model(job.model)
    config = EngineConfig(model=source, **job.engine)
    device = config.resolved_device()
    dtype = config.resolved_dtype(device, source.config.dtype)
    shape = source.config.kv_shape
    budget = Budget.parse(job.budget, shape, job.length)
    path = config.calibration or source.calibration
    calibration = None if path is None else _calibration(Path(path), source)
    half = "bf16" if dtype is torch.bfloat16 else "fp16"
    problem = Problem(shape, budget, half, calibrated=calibration is not None)
    problem.candidates()
    text = _text(job, source.tokenizer(), config.max_model_len or source.config.max_positions)
    _check_outputs(job)
    known = Known(
        model=str(Path(job.model).resolve()) if Path(job.model).exists() else job.model,
        setup={"dtype": str(dtype).removeprefix("torch."), "device": device.type},
        calibration=None if path is None else (Path(path).name, _digest(Path(path))),
        device=str(device),
    )
    opened = partial(_open, source, job.engine)
    measuring = Measuring(text, known, opened, Store(job.results), stages)
    window = text.windows(source.tokenizer())[0]
    screening = Screening(source, dtype, device, calibration, window, measuring)
    return Search(problem, job.effort, measuring, screening, _notes(job, calibration, text))


@dataclass(frozen=True, eq=False)
class Screening:
    """Screens with the model of a source, unless the results file has the errors already."""

    source: Source
    dtype: torch.dtype
    device: torch.device
    calibration: Calibration | None
    window: Sequence[int]
    measuring: Measuring

    def __call__(self, candidates: Candidates) -> dict[int, Errors]:
        known, text = self.measuring.known, self.measuring.text
        settings = {**text.settings, "tokens": text.context}
        setup = {**known.setup, **known.made}
        point = Point(TASK, KIND, settings, known.model, "sides", 0, setup)
        return kept_screening(self.measuring.store, point, candidates, self._screen)

    def _screen(self, candidates: Candidates) -> dict[int, Errors]:
        stages = self.measuring.stages
        decoder = load_decoder(
            self.source, dtype=self.dtype, device=self.device, max_len=len(self.window)
        )
        each = SCREENING_WINDOWS / len(chosen_layers(self.source.config.layers))
        step = partial(stages.advance, each)
        return screen(decoder, self.window, candidates, self.calibration, step)


def _calibration(path: Path, source: Source) -> Calibration:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: there is no such calibration; `gossamer calibrate MODEL --text FILE -o FILE` "
            "makes one"
        )
    return Calibration.load(path, source_fingerprint(source))


def _text(job: Job, tokenizer: Any, longest: int) -> Perplexity:
    path = job.text or TEXT
    if not is_there(path):
        wanted = "name one by --text FILE" if job.text is None else "must be a text file"
        raise FileNotFoundError(f"{path}: there is no such file; {wanted}")
    if job.context < LEAST_CONTEXT:
        raise ValueError(f"context is {job.context}; must be at least {LEAST_CONTEXT}")
    text = Perplexity.of_file(path, tokens=job.tokens, context=job.context)
    check_tasks([text], tokenizer, longest)
    there = len(text.windows(tokenizer))
    if there < text.count:
        raise ValueError(
            f"{text.source} has {there} windows of {job.context} tokens and --tokens is "
            f"{job.tokens}; must be at most {there * job.context}, or take a longer text"
        )
    return text


def _check_outputs(job: Job) -> None:
    """What would otherwise go wrong after half an hour."""
    if job.plot is not None:
        plots.check()
    if job.output is not None and (job.output.is_dir() or not job.output.parent.is_dir()):
        raise ValueError(f"{job.output}: cannot be written; must be a file in a folder that exists")


def _notes(job: Job, calibration: Calibration | None, text: Perplexity) -> list[str]:
    if calibration is None:
        return [
            "without a calibration, bases and calibrated ranks were left out, which do better: "
            f"make one by `gossamer calibrate {job.model} --text FILE -o FILE` and name it by "
            "--calibration"
        ]
    if calibration.manifest.text_sha256 == hashlib.sha256(text.text.encode()).hexdigest():
        return [
            "the calibration was made of this very text, and looks better than it is: take another"
        ]
    return []


def _open(source: Source, engine: dict[str, Any], spec: str) -> EngineSubject:
    """First, what is left of an earlier one leaves memory."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return EngineSubject(source, spec, **engine)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
