"""An engine whose model says what a test wants it to say."""

from typing import Any

import torch

from gossamer.engine import LLM


class Scripted:
    """Every output of the engine is this text, of characters, and ends."""

    def __init__(self, llm: LLM, text: str) -> None:
        self._engine, self._run = llm.engine, llm.engine.executor.run
        ids = llm.tokenizer(text, add_special_tokens=False)["input_ids"]
        self._tokens = [*ids, llm.tokenizer.eos_token_id]

    def __enter__(self) -> None:
        def run(step: Any) -> torch.Tensor:
            owners = {seq.row: seq for seq in self._engine.scheduler.running}
            logits = self._run(step).clone()
            spans = [span for span in step.spans if span.sample]
            for span, row in zip(spans, logits, strict=True):
                at = span.end - len(owners[span.row].prompt_ids)
                row[self._tokens[at]] = 1e4
            return logits

        self._engine.executor.run = run  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        self._engine.executor.run = self._run  # type: ignore[method-assign]
