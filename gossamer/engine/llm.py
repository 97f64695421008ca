"""`LLM`: load a model, generate text."""

from collections import deque
from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any, Self

from gossamer.engine.adapters import UnknownAdapterError, read_adapters
from gossamer.engine.auto import settle
from gossamer.engine.build import Built, build
from gossamer.engine.config import EngineConfig
from gossamer.engine.engine import Engine
from gossamer.engine.grammars import GrammarError
from gossamer.engine.launch_torchrun import serve_if_above_0
from gossamer.engine.outputs import Delta, RequestOutput
from gossamer.engine.parallel import ParallelExecutor
from gossamer.engine.progress import Progress
from gossamer.engine.prompts import Chat, Prompt, PromptTooLongError, encode, split
from gossamer.engine.runner import Executor, LocalExecutor
from gossamer.engine.sampling_params import SamplingParams
from gossamer.models import Source, read_adapter

Names = str | Sequence[str | None] | None  # of an adapter for all prompts, or one for each


class LLM:
    """A model with its cache, ready to generate. Options: see EngineConfig.

    chosen: what a preset of kv came to, and why; None for a cache that was named.

    >>> llm = LLM("smollm2", kv="sparse:k=32,v=32")
    >>> llm.generate("The sea is", SamplingParams(temperature=0))[0].outputs[0].text
    """

    def __init__(self, model: str | PathLike[str] | Source, **options: Any) -> None:
        config = EngineConfig(model=model, **options)
        serve_if_above_0(config)
        config, adapters = read_adapters(config)
        config, self.chosen = settle(config)
        built, executor = _start(config)
        try:
            self.tokenizer = built.source.tokenizer()
            self.engine = Engine(config, built, executor, self.tokenizer)
            for name, adapter in adapters.items():
                self.engine.adapters.add(name, adapter)
            self._inboxes: dict[str, deque[Delta]] = {}  # of requests that someone iterates over
        except BaseException:
            executor.close()
            raise

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora: Names = None,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Outputs for each prompt: text, token ids or a chat (a list of messages), or a list.

        params: for all, or one for each; so is lora, the name of an adapter. Raises ValueError,
        before anything runs, for a prompt that cannot be served; and whatever ends a step, after
        which the engine is empty again.
        """
        ids = self._add(prompts, params, lora)
        outputs = [self.engine.requests[request_id].output for request_id in ids]
        with Progress(self.engine, len(ids), shown=progress) as bar:
            for delta in self._deltas(ids):
                bar.update(delta)
        return outputs

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora: Names = None,
    ) -> Iterator[Delta]:
        """What each step adds, as it comes. Leaving the loop aborts what is still running."""
        return self._deltas(self._add(prompts, params, lora))

    def chat(
        self, messages: Chat, params: SamplingParams | None = None, *, lora: str | None = None
    ) -> RequestOutput:
        """The answer to one chat."""
        return self.generate([messages], params, lora=lora)[0]

    # ---- adapters -------------------------------------------------------------------------

    @property
    def loras(self) -> tuple[str, ...]:
        """Names of the LoRA adapters that are loaded."""
        return self.engine.adapters.names

    def load_lora(self, name: str, folder: str | PathLike[str]) -> None:
        """Add an adapter, also while requests run. ValueError for one that cannot be used."""
        self.engine.adapters.add(name, read_adapter(folder, self.engine.built.source.config))

    def unload_lora(self, name: str) -> None:
        """Requests that run finish with it. ValueError for an unknown name."""
        self.engine.adapters.remove(name)

    # ---- step by step ---------------------------------------------------------------------

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        lora: str | None = None,
    ) -> str:
        """Queue a request for `step`; returns its id. ValueError if it cannot be served."""
        encoded = encode(prompt, self.tokenizer)
        return self.engine.add_request(
            encoded.ids, params, request_id=request_id, prompt=encoded.text, lora=lora
        )

    def step(self) -> list[Delta]:
        """Compute one batch for everything that was added; see Engine.step."""
        return self._deliver(self.engine.step())

    def abort(self, request_id: str) -> list[Delta]:
        """End a request."""
        return self._deliver(self.engine.abort(request_id))

    # ---- the end --------------------------------------------------------------------------

    def close(self) -> None:
        """End the engine and its processes."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -----------------------------------------------------------------------------------------

    def _add(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        lora: Names,
    ) -> list[str]:
        """Queue all prompts, or none if one is wrong."""
        each = split(prompts)
        chosen = list(params) if isinstance(params, Sequence) else [params] * len(each)
        if len(chosen) != len(each):
            raise ValueError(
                f"{len(chosen)} params for {len(each)} prompts; must be as many, or one"
            )
        names = [lora] * len(each) if lora is None or isinstance(lora, str) else list(lora)
        if len(names) != len(each):
            raise ValueError(f"{len(names)} names in lora for {len(each)} prompts; must be as many")
        ids: list[str] = []
        try:
            for prompt, its_params, name in zip(each, chosen, names, strict=True):
                ids.append(self.add_request(prompt, its_params, lora=name))
        except BaseException as error:
            for request_id in ids:
                self.engine.abort(request_id)
            known = (TypeError, ValueError, PromptTooLongError, UnknownAdapterError, GrammarError)
            if type(error) in known:
                raise type(error)(f"prompt {len(ids)}: {error}") from None
            raise
        return ids

    def _deliver(self, deltas: list[Delta]) -> list[Delta]:
        """Whoever makes a step, its increments reach those who iterate over their requests."""
        for delta in deltas:
            if delta.request_id in self._inboxes:
                self._inboxes[delta.request_id].append(delta)
        return deltas

    def _deltas(self, wanted: list[str]) -> Iterator[Delta]:
        """Increments of these requests until they are finished."""
        inbox = deque[Delta]()
        self._inboxes.update(dict.fromkeys(wanted, inbox))
        return self._iterate(wanted, inbox)

    def _iterate(self, wanted: list[str], inbox: deque[Delta]) -> Iterator[Delta]:
        open_ids = set(wanted)
        try:
            while inbox or open_ids:
                if not inbox:
                    self.step()
                if not inbox:  # also a request that a failed step ended while someone else made it
                    open_ids = {name for name in open_ids if name in self.engine.requests}
                    continue
                delta = inbox.popleft()
                # An end that was not told yet is in the request already, but not here.
                if delta.finish_reason and delta.request_id not in self.engine.requests:
                    open_ids.discard(delta.request_id)
                yield delta
        finally:
            for request_id in wanted:
                del self._inboxes[request_id]
            for request_id in open_ids:
                self.engine.abort(request_id)


def _start(config: EngineConfig) -> tuple[Built, Executor]:
    if config.tensor_parallel_size > 1:
        executor = ParallelExecutor(config)
        return executor.built, executor
    built = build(config)
    return built, LocalExecutor(built.runner)
