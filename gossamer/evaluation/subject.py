"""The engine as a subject: a model with one KV cache."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, Self

from gossamer.engine import LLM, RequestOutput, SamplingParams
from gossamer.engine.prompts import Prompt
from gossamer.kv import KVConfig
from gossamer.models import Source


def spec_name(kv: str | KVConfig) -> str:
    """The spec in its shortest form, without types that it leaves to the model. ValueError."""
    return str(KVConfig.parse(kv) if isinstance(kv, str) else kv)


class EngineSubject:
    """`LLM(model, kv=kv, **options)`, asked the questions of tasks. To be closed, or in a `with`.

    Bytes are as stored: "dense" has the type of the model, which on a CPU is float32.
    """

    def __init__(
        self, model: str | PathLike[str] | Source, kv: str | KVConfig = "dense", **options: Any
    ) -> None:
        self.name = spec_name(kv)
        self.llm = LLM(model, kv=kv, **options)
        config, shape = self.llm.engine.kv, self.llm.engine.built.source.config.kv_shape
        self.bytes_per_token = config.bytes_per_token(shape)
        self.share = config.share(shape)
        self.tokenizer: Any = self.llm.tokenizer

    def generate(self, prompts: Sequence[Prompt], max_tokens: Sequence[int]) -> list[str]:
        """Greedy continuations. Raises ValueError for a prompt that the engine cannot serve."""
        params = [SamplingParams(temperature=0, max_tokens=n) for n in max_tokens]
        return [output.outputs[0].text for output in self._run(prompts, params)]

    def loglikelihood(self, windows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Of the engine's own prefill: keys beyond the window are read as the cache stores them."""
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=True)
        return [_known(output) for output in self._run(windows, [params] * len(windows))]

    def first_scored(self, tokens: int) -> int:
        """All but the first: the engine compresses as it goes."""
        return 1

    def _run(
        self, prompts: Sequence[Prompt], params: Sequence[SamplingParams]
    ) -> list[RequestOutput]:
        outputs = self.llm.generate(list(prompts), list(params)) if prompts else []
        for output in outputs:
            if output.outputs[0].finish_reason == "error":
                raise RuntimeError(f"{self.name}: {output.outputs[0].error}")
        return outputs

    def close(self) -> None:
        self.llm.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _known(output: RequestOutput) -> list[float]:
    """Without the first token, which nothing comes before."""
    assert output.prompt_logprobs is not None, "they were asked for"
    known = [value for value in output.prompt_logprobs[1:] if value is not None]
    assert len(known) == len(output.prompt_token_ids) - 1, "every token has its own"
    return known
