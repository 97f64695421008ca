"""What `gossamer frontier` does: options to a search, checked before work begins; tables, files."""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from gossamer import plotting
from gossamer.engine import EngineConfig
from gossamer.evaluation.comparison import file_digest, open_subject
from gossamer.evaluation.frontier.candidates import Budget, Candidates, Problem
from gossamer.evaluation.frontier.measure import Conditions, Measuring
from gossamer.evaluation.frontier.outcome import Aim, Outcome, choice, write_choice
from gossamer.evaluation.frontier.report import draw, markdown, rich_table, verdict
from gossamer.evaluation.frontier.screening import (
    KIND,
    LEAST_TOKENS,
    TASK,
    Errors,
    chosen_layers,
    kept_screening,
    screen,
)
from gossamer.evaluation.frontier.search import SCREENING_WINDOWS, Effort, Search
from gossamer.evaluation.perplexity import Perplexity
from gossamer.evaluation.progress import Stages
from gossamer.evaluation.store import Point, Store
from gossamer.evaluation.suite import check_tasks
from gossamer.evaluation.texts import existing_text
from gossamer.kv import Calibration
from gossamer.kv.bits import kernel_pairs
from gossamer.kv.speed import decode_speed
from gossamer.models import Source, load_decoder, open_model, source_fingerprint

# Not what the shipped calibration was made of: on its own text, it would look too good.
TEXT = Path(__file__).parents[3] / "benchmarks/data/wikitext2-choose-excerpt.txt"
LOG_WIDTH = 160  # a log has room for whole specs
LEAST_CONTEXT = 2 * LEAST_TOKENS  # so that a window of 128 tokens leaves something compressed


@dataclass(frozen=True)
class SearchOptions:
    """What is wanted. engine: options of the engine other than model and kv.

    sequences: how many of `length` tokens decode times are measured for; None for a typical point.
    """

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
    aim: Aim = field(default_factory=Aim)
    sequences: int | None = None


def run(options: SearchOptions, *, as_markdown: bool) -> Outcome:
    """Search, print and write. Raises what `prepare` and `Search.run` raise."""
    with Stages(shown=True) as stages, _quiet_caches():
        search = prepare(options, stages)
        outcome = search.run()
        seconds = stages.seconds
    _print(outcome, as_markdown=as_markdown)
    notes = Console(stderr=True, soft_wrap=True, highlight=False)
    files = []
    if options.output is not None:
        write_choice(options.output, choice(outcome, search.measuring))
        files.append(options.output)
    if options.plot is not None:
        files += draw(outcome, options.plot)
    for file in files:
        notes.print(f"wrote {file}", markup=False)
    notes.print(f"{seconds / 60:.1f} minutes", markup=False)
    return outcome


@contextmanager
def _quiet_caches() -> Iterator[None]:
    """Probes have caches that nobody would use; of the others, the table says what is slow."""
    log = logging.getLogger("gossamer.kv")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _print(outcome: Outcome, *, as_markdown: bool) -> None:
    console = Console()
    console = console if console.is_terminal else Console(width=LOG_WIDTH)
    if as_markdown:
        console.print(markdown(outcome), markup=False, highlight=False, soft_wrap=True)
        return
    console.print(rich_table(outcome))
    console.print(verdict(outcome), markup=False, highlight=False, soft_wrap=True)


def prepare(options: SearchOptions, stages: Stages) -> Search:
    """A search that can run. ValueError, OSError or ImportError say which option is wrong."""
    source = open_model(options.model)
    config = EngineConfig(model=source, **options.engine)
    device = config.resolved_device()
    dtype = config.resolved_dtype(device, source.config.dtype)
    shape = source.config.kv_shape
    budget = Budget.parse(options.budget, shape, options.length)
    path = config.calibration or source.calibration
    calibration = None if path is None else _calibration(Path(path), source)
    half = "bf16" if dtype is torch.bfloat16 else "fp16"
    problem = Problem(shape, budget, half, calibration is not None, has_codes(calibration))
    problem.candidates()
    text = _text(options, source.tokenizer(), config.max_model_len or source.config.max_positions)
    _check_outputs(options)
    conditions = Conditions(
        model=str(Path(options.model).resolve()) if Path(options.model).exists() else options.model,
        setup={"dtype": str(dtype).removeprefix("torch."), "device": device.type},
        calibration=None if path is None else (Path(path).name, file_digest(Path(path))),
        device=str(device),
    )
    opened = partial(open_subject, source, engine=options.engine)
    measuring = Measuring(text, conditions, opened, Store(options.results), stages)
    window = text.windows(source.tokenizer())[0]
    screening = Screening(source, dtype, device, calibration, window, measuring)
    point = None if options.sequences is None else (options.sequences, options.length)
    speed = partial(decode_speed, shape=shape, dtype=dtype, device=device, point=point)
    notes = _notes(options, calibration, text)
    return Search(problem, options.effort, measuring, screening, notes, speed, options.aim)


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
        conditions, text = self.measuring.conditions, self.measuring.text
        settings = {**text.settings, "tokens": text.context}
        setup = {**conditions.setup, **conditions.calibrated_setup}
        point = Point(TASK, KIND, settings, conditions.model, "sides", 0, setup)
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


def has_codes(calibration: Calibration | None) -> bool:
    """Whether it knows how rows of K and V become codes."""
    return calibration is not None and {"k", "v"} <= calibration.coded.keys()


def _text(options: SearchOptions, tokenizer: Any, longest: int) -> Perplexity:
    path = existing_text(options.text, TEXT)
    if options.context < LEAST_CONTEXT:
        raise ValueError(f"context is {options.context}; must be at least {LEAST_CONTEXT}")
    text = Perplexity.of_file(path, tokens=options.tokens, context=options.context)
    check_tasks([text], tokenizer, longest)
    there = len(text.windows(tokenizer))
    if there < text.count:
        raise ValueError(
            f"{text.source} has {there} windows of {options.context} tokens and --tokens is "
            f"{options.tokens}; must be at most {there * options.context}, or take a longer text"
        )
    return text


def _check_outputs(options: SearchOptions) -> None:
    """What would otherwise go wrong after half an hour."""
    if options.plot is not None:
        plotting.check()
    output = options.output
    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        raise ValueError(f"{output}: cannot be written; must be a file in a folder that exists")


def _notes(options: SearchOptions, calibration: Calibration | None, text: Perplexity) -> list[str]:
    if calibration is None:
        return [
            "without a calibration, bases, calibrated ranks and coded rows were left out, which do "
            f"better: make one by `gossamer calibrate {options.model} --text FILE -o FILE` and "
            "name it by --calibration"
        ]
    notes = []
    if not has_codes(calibration) and kernel_pairs(calibration.manifest.shape.head_dim):
        notes.append(
            "the calibration knows nothing of coded rows, which were left out: make it anew"
        )
    if calibration.manifest.text_sha256 == hashlib.sha256(text.text.encode()).hexdigest():
        notes.append(
            "the calibration was made of this very text, and looks better than it is: take another"
        )
    return notes
