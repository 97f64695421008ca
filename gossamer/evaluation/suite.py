"""The tasks that have a name, made from the options of a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gossamer.evaluation.agreement import Agreement
from gossamer.evaluation.haystack import LongTask
from gossamer.evaluation.long import LONG
from gossamer.evaluation.longbench.task import PREFIX, LongBench, longbench_tasks
from gossamer.evaluation.perplexity import Perplexity
from gossamer.evaluation.retrieval import Copying, Lookup, Needle
from gossamer.evaluation.tasks import Task
from gossamer.evaluation.texts import existing_text
from gossamer.ops.checks import one_of

TEXT = Path(__file__).parents[2] / "benchmarks/data/wikitext2-test-excerpt.txt"
LONGBENCH = "longbench"
NEEDLE_ROOM = 64  # tokens of the question and of the answer
LONG_LENGTHS = (1024, 2048)


@dataclass(frozen=True)
class Options:
    """What a command line says; None for what the task thinks best.

    examples: of each task that generates; needles are at least one per length and depth. filler: a
    file that haystacks and the filler of lookups are made of. longbench: the folder of its data.
    """

    text: Path | None = None
    tokens: int | None = None
    context: int | None = None
    examples: int | None = None
    lengths: tuple[int, ...] | None = None
    depths: tuple[float, ...] | None = None
    filler: Path | None = None
    longbench: Path | None = None
    seed: int = 0
    quick: bool = False

    def or_quick(self, name: str, quick: Any) -> dict[str, Any]:
        """The option as an argument, where it is given or a quick run has its own."""
        value = getattr(self, name)
        value = quick if value is None and self.quick else value
        return {} if value is None else {name: value}


def _perplexity(options: Options) -> list[Task]:
    path = existing_text(options.text, TEXT)
    sizes = options.or_quick("tokens", 2048) | options.or_quick("context", 1024)
    return [Perplexity.of_file(path, **sizes)]


def _agreement(options: Options) -> list[Task]:
    path = existing_text(options.text, TEXT)
    sizes = {"prompt_tokens": 256, "tokens": 32} if options.quick else {}
    return [Agreement.of_file(path, **options.or_quick("examples", 4), **sizes)]


def _lookup(options: Options) -> list[Task]:
    return [Lookup(**options.or_quick("examples", 20), seed=options.seed, text=_filler(options))]


def _copying(options: Options) -> list[Task]:
    return [Copying(**options.or_quick("examples", 20), seed=options.seed)]


def _needle(options: Options) -> list[Task]:
    places = options.or_quick("lengths", (512,)) | options.or_quick("depths", (0.0, 0.5, 1.0))
    needle = Needle(**places, seed=options.seed, text=_filler(options))
    wanted = 6 if options.quick else 100
    wanted = wanted if options.examples is None else options.examples
    cells = len(needle.lengths) * len(needle.depths)
    rounds = max(1, wanted // cells)
    return [Needle(needle.lengths, needle.depths, rounds, seed=options.seed, text=needle.text)]


def _long(kind: type[LongTask], options: Options) -> list[Task]:
    """One for each length."""
    lengths = options.or_quick("lengths", (512,)).get("lengths", LONG_LENGTHS)
    given = options.or_quick("examples", 10) | {"seed": options.seed, "text": _filler(options)}
    return [kind(length=length, **given) for length in lengths]


def _filler(options: Options) -> str:
    return "" if options.filler is None else options.filler.read_text(encoding="utf-8")


TASKS: dict[str, Callable[[Options], list[Task]]] = {
    "perplexity": _perplexity,
    "lookup": _lookup,
    "needle": _needle,
    "copying": _copying,
    "agreement": _agreement,
    **{name: partial(_long, kind) for name, kind in LONG.items()},
}
SUITES = {"default": ("perplexity", "lookup", "needle", "copying"), "long": tuple(LONG)}


def suite_tasks(suite: str | None, tasks: str | None) -> list[str]:
    """The names of a suite, or of a list `NAME,...`. Raises ValueError for both at once."""
    if suite is not None and tasks is not None:
        raise ValueError(f"--suite is {suite!r} and --tasks is {tasks!r}; must be one of the two")
    if tasks is not None:
        return [name.strip() for name in tasks.split(",") if name.strip()]
    suite = "default" if suite is None else suite
    one_of("suite", suite, SUITES)
    return list(SUITES[suite])


def make_tasks(names: Sequence[str], options: Options, longest: int) -> list[Task]:
    """`longbench` is all of its tasks, `longbench-qasper` one of them; `long-needle` is one for
    each length. longest: see check_tasks.

    Raises ValueError for an unknown name or a wrong option, and OSError for a missing file.
    """
    tasks: list[Task] = []
    for name in names:
        if name == LONGBENCH or name.startswith(PREFIX):
            tasks += _longbench(name, options, longest)
        else:
            one_of("task", name, (*TASKS, LONGBENCH))
            tasks += TASKS[name](options)
    return tasks


def _longbench(name: str, options: Options, longest: int) -> list[LongBench]:
    some = None if name == LONGBENCH else [name]
    given = options.or_quick("examples", 2)
    return longbench_tasks(longest, options.longbench, some, **given)


def check_tasks(tasks: Sequence[Task], tokenizer: Any, longest: int) -> None:
    """Raises ValueError, before anything is loaded, for what cannot run with a model.

    longest: the tokens of a sequence that the engine serves, prompt and output.
    """
    for task in tasks:
        if isinstance(task, Perplexity):
            if task.context >= longest:
                raise ValueError(
                    f"context is {task.context}; must be less than {longest}, what the model has"
                )
            task.windows(tokenizer)
        if isinstance(task, Needle) and max(task.lengths) + NEEDLE_ROOM > longest:
            raise ValueError(
                f"lengths are {task.lengths}; must be at most {longest - NEEDLE_ROOM}, "
                f"as the model has {longest} tokens"
            )
        if isinstance(task, LongTask):
            if task.length > longest:
                raise ValueError(
                    f"lengths have {task.length}; must be at most {longest}, what the model has"
                )
            next(task.documents(tokenizer))
        if isinstance(task, Agreement):
            if task.prompt_tokens + task.tokens > longest:
                raise ValueError(
                    f"agreement takes {task.prompt_tokens} + {task.tokens} tokens; must be at most "
                    f"{longest}, what the model has"
                )
            task.prompts(tokenizer)
