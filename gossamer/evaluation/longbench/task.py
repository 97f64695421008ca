"""A task of LongBench as a task of an evaluation; prompts that are too long lose their middle.

Instructions stand at both ends of a template, so the first and the last half of the tokens stay.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from gossamer.engine.prompts import Prompt, encode
from gossamer.evaluation.longbench.data import Row, read_task
from gossamer.evaluation.longbench.settings import SETTINGS, best_score
from gossamer.evaluation.tasks import Emit, Example, Kind, Score, Subject
from gossamer.ops.checks import one_of

PREFIX = "longbench-"
BATCH = 8  # prompts at a time: scores are known, and kept, after each batch
LEAST_ROOM = 64  # tokens of a prompt


@dataclass(frozen=True)
class LongBench:
    """One of the 16 tasks; its data is read when it runs.

    task: a name of SETTINGS. context: tokens that the model serves, prompt and answer: longer
    prompts lose their middle. folder: with `<task>.jsonl`; None for the package `datasets`.
    examples: only the first ones. chat: prompts are chats for models that have a chat template,
    except in few-shot and code tasks, as in the benchmark. Raises ValueError for bad settings.
    """

    task: str
    context: int
    folder: Path | None = None
    examples: int | None = None
    chat: bool = True

    kind: ClassVar[Kind] = "accuracy"

    def __post_init__(self) -> None:
        one_of("LongBench task", self.task, SETTINGS)
        least = SETTINGS[self.task].max_tokens + LEAST_ROOM
        if type(self.context) is not int or self.context < least:
            raise ValueError(
                f"context is {self.context!r}; must be at least {least} for {self.task}: "
                f"{least - LEAST_ROOM} tokens of the answer and {LEAST_ROOM} of the prompt"
            )
        if self.examples is not None and (type(self.examples) is not int or self.examples < 1):
            raise ValueError(f"examples is {self.examples!r}; must be an integer >= 1, or None")

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.task}"

    @property
    def settings(self) -> dict[str, Any]:
        """With the data's digest in place of where it lies; "" where it cannot be read."""
        settings = asdict(self)
        del settings["folder"]
        try:
            content = repr([asdict(row) for row in self.rows])
        except (OSError, ValueError, ImportError):  # `run` says what is wrong
            return settings | {"sha256": ""}
        return settings | {"sha256": hashlib.sha256(content.encode()).hexdigest()[:16]}

    @property
    def count(self) -> int | None:
        try:
            return len(self.rows)
        except (OSError, ValueError, ImportError):
            return None

    @cached_property
    def rows(self) -> list[Row]:
        """Raises OSError, ImportError or ValueError where the data is not there or not whole."""
        return read_task(self.task, self.folder)[: self.examples]

    def run(self, subject: Subject, done: set[str], emit: Emit) -> None:
        todo = [row for row in self.rows if row.id not in done]
        for start in range(0, len(todo), BATCH):
            rows = todo[start : start + BATCH]
            examples = [self.example(row, subject.tokenizer) for row in rows]
            texts = subject.generate([e.prompt for e in examples], [e.max_tokens for e in examples])
            for example, text in zip(examples, texts, strict=True):
                emit(self.score(example, text))

    def example(self, row: Row, tokenizer: Any) -> Example:
        """The question that a row asks of a model with this tokenizer."""
        settings = SETTINGS[self.task]
        chat = self.chat and settings.chat and getattr(tokenizer, "chat_template", None) is not None
        return Example(
            id=row.id,
            prompt=make_prompt(
                self.task, row, tokenizer, self.context - settings.max_tokens, chat=chat
            ),
            target=row.answers,
            max_tokens=settings.max_tokens,
            meta={"length": row.length, "classes": list(row.classes)},
        )

    def score(self, example: Example, text: str) -> Score:
        value = best_score(self.task, text, example.target, example.meta["classes"])
        return Score(example.id, value, meta={"length": example.meta["length"], "text": text})


def longbench_tasks(
    context: int,
    folder: Path | None = None,
    tasks: Sequence[str] | None = None,
    *,
    examples: int | None = None,
    chat: bool = True,
) -> list[LongBench]:
    """Some of the tasks, or all. Names may have the prefix "longbench-". Raises ValueError."""
    names = list(SETTINGS) if tasks is None else [name.removeprefix(PREFIX) for name in tasks]
    if len(names) != len(set(names)) or not names:
        raise ValueError(f"LongBench tasks are {names}; must be at least one, each once")
    return [LongBench(name, context, folder, examples, chat) for name in names]


def problems(tasks: Sequence[LongBench]) -> dict[str, str]:
    """Of tasks whose data cannot be used, why: the others can run."""
    found = {}
    for task in tasks:
        try:
            assert task.rows
        except (OSError, ValueError, ImportError) as error:
            found[task.name] = str(error)
    return found


# ---- prompts -------------------------------------------------------------------------------------


def without_middle(ids: Sequence[int], room: int) -> list[int]:
    """At most `room` of the tokens: as many from the start as from the end."""
    if len(ids) <= room:
        return list(ids)
    half = room // 2
    return [*ids[:half], *ids[len(ids) - half :]]


def make_prompt(task: str, row: Row, tokenizer: Any, room: int, *, chat: bool) -> Prompt:
    """The row in its template, at most `room` tokens long.

    chat: as a message to the assistant, which takes some of the room for the chat's own tokens.
    Raises ValueError without a tokenizer, and where the room is too small for any chat.
    """
    if tokenizer is None:
        raise ValueError("the model has no tokenizer; LongBench needs one")
    text = SETTINGS[task].template.format(context=row.context, input=row.input)
    ids = list(tokenizer(text)["input_ids"])
    if not chat:
        return text if len(ids) <= room else without_middle(ids, room)
    return _fitting_chat(text, ids, tokenizer, room)


def _fitting_chat(text: str, ids: list[int], tokenizer: Any, room: int) -> Prompt:
    """The halves are put together as text, whose tokens may be other ones: measured, and cut on."""
    limit = min(room, len(ids))
    while limit >= 2:
        if limit < len(ids):
            half = limit // 2
            text = _decode(tokenizer, ids[:half]) + _decode(tokenizer, ids[len(ids) - half :])
        message = [{"role": "user", "content": text}]
        excess = len(encode(message, tokenizer).ids) - room
        if excess <= 0:
            return message
        limit -= excess
    raise ValueError(f"room for {room} tokens; must be more for a chat of this model")


def _decode(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True))
