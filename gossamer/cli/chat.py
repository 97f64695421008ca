"""`gossamer chat`: talk to a model in the terminal."""

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
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from gossamer.cli import options as o

if TYPE_CHECKING:
    from gossamer.engine import LLM, Delta, SamplingParams

HELP = """/reset        clear the conversation
/system TEXT  set the system prompt; without TEXT, remove it
/save FILE    write the conversation as JSON
/help         show this list
/exit         leave (also Ctrl-D); Ctrl-C stops an answer"""


def chat(
    model: o.Model,
    kv: o.Cache = "dense",
    system: Annotated[str | None, typer.Option("--system", help="System prompt")] = None,
    max_tokens: o.MaxTokens = 512,
    temperature: o.Temperature = 0.7,
    top_p: o.TopP = 0.95,
    top_k: o.TopK = 0,
    seed: o.Seed = None,
    dtype: o.DType = "auto",
    device: o.Device = "auto",
    max_model_len: o.MaxModelLen = None,
    kv_memory: o.KVMemory = None,
    calibration: o.CalibrationFile = None,
    calibration_text: o.CalibrationText = None,
    tensor_parallel_size: o.TensorParallel = 1,
    launcher: o.Launcher = "auto",
    weights: o.Weights = "auto",
    random_weights: o.RandomWeights = False,
    lora: o.Lora = None,
) -> None:
    """Chat with a model in the terminal; /help lists the commands."""
    with o.one_line_errors():
        _chat(
            model,
            system,
            sampling=o.given(
                max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed
            ),
            engine=o.given(
                kv=kv,
                dtype=dtype,
                device=device,
                max_model_len=max_model_len,
                kv_memory=kv_memory,
                calibration=calibration,
                calibration_text=calibration_text,
                tensor_parallel_size=tensor_parallel_size,
                launcher=launcher,
                weights=weights,
                random_weights=random_weights,
                lora=o.adapter(lora),
            ),
        )


def _chat(
    model: str, system: str | None, *, sampling: dict[str, Any], engine: dict[str, Any]
) -> None:
    """Chat until the input ends. Raises what the engine raises for bad options."""
    from gossamer.engine import SamplingParams
    from gossamer.workloads.loading import has_chat_template, loaded, warm_up

    params = SamplingParams(**sampling)
    with loaded(model, **engine) as llm:
        if not has_chat_template(llm):
            raise ValueError(f"{model}: has no chat template; try `gossamer generate`")
        warm_up(llm, [{"role": "user", "content": "hello"}])
        conversation = Conversation(llm, params, History(system))
        name = llm.engine.built.source.name
        conversation.note(f"{name}, KV cache {engine['kv']}; /help for commands")
        for line in _lines():
            if not conversation.take(line):
                break


@dataclass
class History:
    """Messages of both sides in turn, after the system prompt."""

    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)

    def all(self) -> list[dict[str, str]]:
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.messages]

    def add(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})

    def drop_to_fit(self, llm: "LLM", tokens: int) -> int:
        """Drop the oldest turns until `tokens` suffice; how many. ValueError if one is too long."""
        from gossamer.engine.prompts import encode

        dropped = 0
        while (length := len(encode(self.all(), llm.tokenizer).ids)) > tokens:
            if len(self.messages) < 3:
                raise ValueError(f"the message has {length} tokens; must have 1 to {tokens}")
            del self.messages[:2]
            dropped += 1
        return dropped


class Conversation:
    """One conversation with a loaded model."""

    def __init__(self, llm: "LLM", params: "SamplingParams", history: History) -> None:
        self.llm, self.params, self.history = llm, params, history
        self._notes = Console(stderr=True)

    def note(self, text: str) -> None:
        """A dim line that is not the model's."""
        self._notes.print(Text(text, style="dim"), soft_wrap=True)

    def take(self, line: str) -> bool:
        """A line that was typed; whether to go on."""
        command, _, rest = line.strip().partition(" ")
        if command == "/exit":
            return False
        if not command.startswith("/"):
            if command:
                self.answer(line.strip())
            return True
        commands = {
            "/reset": self.reset,
            "/system": self.set_system,
            "/save": self.save,
            "/help": self.help,
        }
        if command in commands:
            commands[command](rest.strip())
        else:
            self.note(f"{command} is not a command; must be /exit, {', '.join(commands)}")
        return True

    def help(self, _: str) -> None:
        self.note(HELP)

    def reset(self, _: str) -> None:
        self.history.messages.clear()
        self.note("conversation cleared")

    def set_system(self, prompt: str) -> None:
        self.history.system = prompt or None
        self.note(f"system prompt: {prompt}" if prompt else "no system prompt")

    def save(self, name: str) -> None:
        if not name:
            self.note("/save needs a file")
            return
        try:
            text = json.dumps(self.history.all(), indent=2, ensure_ascii=False)
            Path(name).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            self.note(f"not saved: {error}")
        else:
            self.note(f"wrote {name}")

    def answer(self, message: str) -> None:
        """Print the model's answer and remember both."""
        from gossamer.workloads.generation import timed_generation

        history, longest = self.history, self.llm.engine.built.max_model_len
        history.add("user", message)
        room = min(self.params.max_tokens or longest, longest // 2)  # for the answer
        try:
            dropped = history.drop_to_fit(self.llm, longest - room)
        except ValueError as error:
            history.messages.pop()
            self.note(f"error: {error}")
            return
        if dropped:
            self.note(f"the conversation is too long: dropped the oldest {dropped} turns")
        with _interrupts() as interrupted:
            found = timed_generation(
                self.llm,
                [history.all()],
                self.params,
                on_delta=_show,
                stop=lambda: bool(interrupted),
                lora=next(iter(self.llm.loras), None),
            )
        sys.stdout.write("\n")
        history.add("assistant", found.outputs[0].outputs[0].text)
        if found.error:
            self.note(f"error: {found.error}")
        self.note(found.summary() + (", stopped" if found.stopped else ""))


def _show(delta: "Delta") -> None:
    sys.stdout.write(delta.text)
    sys.stdout.flush()


def _lines() -> Iterator[str]:
    """What is typed until it ends, with a prompt in terminals."""
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
    if threading.current_thread() is not threading.main_thread():  # only it gets signals
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
