"""What `gossamer chat` does: a loop over lines, a history that fits, and answers as they come."""

import importlib
import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.text import Text

from gossamer.cli.generation import summary
from gossamer.cli.runs import has_chat_template, loaded, timed_run, warm_up
from gossamer.engine import LLM, Delta, SamplingParams
from gossamer.engine.prompts import encode

HELP = """/reset        forget the conversation
/system TEXT  what the model is to be; without TEXT, nothing special
/save FILE    write the conversation as JSON
/help         this list
/exit         leave, as Ctrl-D does; Ctrl-C stops an answer"""

Message = dict[str, str]


@dataclass
class History:
    """Messages of both sides in turn; the system's words come before them."""

    system: str | None = None
    messages: list[Message] = field(default_factory=list)

    def all(self) -> list[Message]:
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.messages]

    def add(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})

    def drop_to_fit(self, llm: LLM, tokens: int) -> int:
        """Drop the oldest turns until `tokens` suffice; how many. ValueError if one is too long."""
        dropped = 0
        while (length := len(encode(self.all(), llm.tokenizer).ids)) > tokens:
            if len(self.messages) < 3:
                raise ValueError(f"the message has {length} tokens; must have 1 to {tokens}")
            del self.messages[:2]
            dropped += 1
        return dropped


def converse(
    model: str, system: str | None, *, sampling: dict[str, Any], engine: dict[str, Any]
) -> None:
    """Chat until the input ends. Raises what the engine raises for bad options."""
    params = SamplingParams(**sampling)
    with loaded(model, **engine) as llm:
        if not has_chat_template(llm):
            raise ValueError(f"{model}: has no chat template; try `gossamer generate`")
        warm_up(llm, [{"role": "user", "content": "hello"}])
        talk = Talk(llm, params, History(system))
        talk.say(f"{llm.engine.built.source.name}, KV cache {engine['kv']}; /help for commands")
        for line in _lines():
            if not talk.take(line):
                break


class Talk:
    """One conversation with a loaded model."""

    def __init__(self, llm: LLM, params: SamplingParams, history: History) -> None:
        self.llm, self.params, self.history = llm, params, history
        self._notes = Console(stderr=True)

    def say(self, words: str) -> None:
        """A dim line that is not the model's."""
        self._notes.print(Text(words, style="dim"), soft_wrap=True)

    def take(self, line: str) -> bool:
        """A line that was typed; whether to go on."""
        word, _, rest = line.strip().partition(" ")
        if word == "/exit":
            return False
        if not word.startswith("/"):
            if word:
                self.answer(line.strip())
            return True
        commands = {
            "/reset": self.reset,
            "/system": self.set_system,
            "/save": self.save,
            "/help": self.help,
        }
        if word in commands:
            commands[word](rest.strip())
        else:
            self.say(f"{word} is no command; must be /exit, {', '.join(commands)}")
        return True

    def help(self, _: str) -> None:
        self.say(HELP)

    def reset(self, _: str) -> None:
        self.history.messages.clear()
        self.say("forgotten")

    def set_system(self, words: str) -> None:
        self.history.system = words or None
        self.say(f"system: {words}" if words else "no system message")

    def save(self, name: str) -> None:
        if not name:
            self.say("/save needs a file")
            return
        try:
            text = json.dumps(self.history.all(), indent=2, ensure_ascii=False)
            Path(name).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            self.say(f"not saved: {error}")
        else:
            self.say(f"wrote {name}")

    def answer(self, message: str) -> None:
        """Print the model's answer and remember both."""
        history, longest = self.history, self.llm.engine.built.max_model_len
        history.add("user", message)
        room = min(self.params.max_tokens or longest, longest // 2)  # for the answer
        try:
            dropped = history.drop_to_fit(self.llm, longest - room)
        except ValueError as error:
            history.messages.pop()
            self.say(f"error: {error}")
            return
        if dropped:
            self.say(f"the conversation is too long: dropped the oldest {dropped} turns")
        with _interrupts() as interrupted:
            run = timed_run(
                self.llm,
                [history.all()],
                self.params,
                on_delta=_show,
                stop=lambda: bool(interrupted),
            )
        sys.stdout.write("\n")
        history.add("assistant", run.outputs[0].outputs[0].text)
        if run.problem:
            self.say(f"error: {run.problem}")
        self.say(summary(run) + (", stopped" if run.stopped else ""))


def _show(delta: Delta) -> None:
    sys.stdout.write(delta.text)
    sys.stdout.flush()


def _lines() -> Iterator[str]:
    """What is typed, with a prompt for people, until it ends."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    with suppress(ImportError):  # gives input() a history, where Python has it
        importlib.import_module("readline")
    while True:
        try:
            yield input(">>> ")
        except EOFError:
            sys.stdout.write("\n")
            return
        except KeyboardInterrupt:
            sys.stdout.write("\nCtrl-D or /exit to leave\n")


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Ctrl-C fills the list instead of breaking a step off; the second time it ends everything."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # signals are not for others
        yield seen
        return

    def note(number: int, _: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)
