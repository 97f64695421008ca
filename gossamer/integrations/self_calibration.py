"""A calibration without a text: on what the model itself writes, with what caches then cost.

Run as a module, it is the process that makes the calibration of a model at its first use: what
that takes in memory is gone when the engine starts.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gossamer.engine import LLM, SamplingParams
from gossamer.integrations.calibrating import calibration_of, measure
from gossamer.integrations.expected_loss import expected_losses
from gossamer.integrations.transformers.loading import load_weights
from gossamer.integrations.windows import middle
from gossamer.kv import Calibration
from gossamer.kv.gradients import SHORTEST_WINDOW
from gossamer.kv.ladder import LADDER
from gossamer.models import EMBEDDED, open_model
from gossamer.models.embedded import embedded_path

# Windows that bases and steps are made of, and then one more that they are judged on.
WINDOWS, CONTEXT = 5, 1024
Bar = Callable[[str, int], Callable[[int], None]]  # (name, total) -> what advances it
SEED = 20260


@dataclass(frozen=True)
class Windows:
    """Token ids; the first ones to calibrate on, the last one to judge on."""

    ids: list[list[int]]
    text_sha256: str = ""

    @property
    def length(self) -> int:
        return len(self.ids[0])


def self_calibrate(model: Any, windows: Windows, bar: Bar) -> Calibration:
    """Measure a transformers model on windows of equal length, and what caches cost it."""
    *first, last = windows.ids
    ids = [token for window in first for token in window]
    progress = lambda name: bar(name, len(ids))  # noqa: E731
    own = not windows.text_sha256
    bases = measure(model, ids, context=windows.length, progress=progress, own_text=own)
    calibration = calibration_of(model, bases, text_sha256=windows.text_sha256)
    done = bar("caches", len(LADDER) * len(last))
    start = middle(model, len(last))
    losses = expected_losses(model, [last], calibration, start=start, on_window=done)
    manifest = replace(calibration.manifest, losses=losses)
    return replace(calibration, manifest=manifest)


def context_of(sees: int) -> int:
    """Tokens of a window. Raises ValueError for a model that sees too few to compress any."""
    if sees < SHORTEST_WINDOW:
        raise ValueError(
            f"the model sees {sees} tokens; a calibration needs at least {SHORTEST_WINDOW}"
        )
    return min(CONTEXT, sees)


def start_token(bos: int | None, eos: tuple[int, ...]) -> int:
    """What a text of the model's own begins with. Raises ValueError where there is none."""
    if not eos and bos is None:
        raise ValueError(
            "the model has no token that begins or ends a text, so it cannot write one to be "
            "calibrated on; name a text by --calibration-text"
        )
    return eos[0] if bos is None else bos


def sampled(model: str, device: str, bar: Bar) -> Windows:
    """Text that the model writes by itself, at temperature 1, from a start token on."""
    with LLM(model, kv="dense", device=device, prefix_caching=False) as llm:
        config = llm.engine.built.source.config
        context = context_of(min(config.sees, llm.engine.built.max_model_len))
        start = start_token(config.bos_id, config.eos_ids)
        new = context - 1
        params = [
            SamplingParams(temperature=1.0, max_tokens=new, ignore_eos=True, seed=SEED + i)
            for i in range(WINDOWS + 1)
        ]
        advance = bar("writing a text", (WINDOWS + 1) * new)
        written: dict[str, list[int]] = {}
        for delta in llm.stream([[start]] * len(params), params):
            advance(len(delta.token_ids))
            written.setdefault(delta.request_id, [start]).extend(delta.token_ids)
    return Windows(list(written.values()))


def sampled_by(model: Any, bar: Bar) -> Windows:
    """The same by a transformers model itself, with its own `generate`."""
    config = model.config
    longest = config.max_position_embeddings
    context = context_of(min(longest, getattr(config, "sliding_window", None) or longest))
    eos = getattr(config, "eos_token_id", None)
    eos = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
    start = start_token(getattr(config, "bos_token_id", None), eos)
    begin = torch.full((WINDOWS + 1, 1), start, device=model.device)
    advance = bar("writing a text", begin.shape[0] * context)
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(SEED)
        ids = model.generate(
            begin,
            attention_mask=torch.ones_like(begin),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=context - 1,
            max_new_tokens=context - 1,
            pad_token_id=start,
        )
    advance(ids.numel())
    return Windows(ids.tolist())


def text_windows(tokenizer: Any, path: Path, context: int) -> Windows:
    """The first windows of a text. Raises ValueError for one that is too short."""
    if tokenizer is None:
        raise ValueError(f"{path}: the model has no tokenizer, which a text needs")
    content = path.read_bytes()
    ids = tokenizer(content.decode("utf-8"))["input_ids"]
    count = min(WINDOWS + 1, len(ids) // context)
    if count < 2:
        raise ValueError(
            f"{path}: has {len(ids)} tokens; must have at least {2 * context}, better "
            f"{(WINDOWS + 1) * context}"
        )
    cut = [ids[i * context : (i + 1) * context] for i in range(count)]
    return Windows(cut, sha256(content).hexdigest())


# ---- as a process --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """model: a built-in name or a path. text: a file, or "" for the model's own."""

    model: str
    output: str
    device: str
    dtype: str
    text: str = ""


def run(job: Job) -> None:
    """Raises ValueError, OSError or ImportError for what cannot be calibrated."""
    path = embedded_path(job.model) if job.model in EMBEDDED else Path(job.model)
    with bars(f"calibrating {path.name}") as bar:
        windows = _of_text(job) if job.text else sampled(job.model, job.device, bar)
        model = load_weights(path, dtype=getattr(torch, job.dtype), device=job.device)
        self_calibrate(model, windows, bar).save(job.output)


def _of_text(job: Job) -> Windows:
    source = open_model(job.model)
    context = context_of(source.config.sees)
    return text_windows(source.tokenizer(), Path(job.text), context)


@contextmanager
def bars(title: str) -> Iterator[Bar]:
    """Progress on stderr, where that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        if console.is_terminal:
            console.print(f"{title}, once: the result is kept", style="dim", highlight=False)

        def bar(name: str, total: int) -> Callable[[int], None]:
            return partial(progress.advance, progress.add_task(name, total=total))

        yield bar


def main() -> int:
    """The job is JSON on standard input; what is wrong with it, a line on standard output."""
    job = Job(**json.loads(sys.stdin.read()))
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print do not print into the answer
    try:
        run(job)
    except (ValueError, OSError, ImportError, MemoryError, torch.OutOfMemoryError) as error:
        answer.write(" ".join(str(error).split()))
        answer.flush()
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
