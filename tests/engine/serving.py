"""Engines on the CPU in float32, and the logits that they compute on the way."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gossamer.engine import LLM, Delta, RequestOutput, SamplingParams
from gossamer.models import EMBEDDED
from gossamer.models.embedded import embedded_path
from tests.models.tiny import VOCAB, tiny_directory

TEXT = Path(__file__).parents[2] / "benchmarks" / "data" / "wikitext2-test-excerpt.txt"

# request id -> position -> logits after the token at that position
Logits = dict[str, dict[int, Tensor]]


def cpu_llm(model: Any, **options: Any) -> LLM:
    """An engine in float32 whose cache is 64 MB unless told."""
    return LLM(model, **{"device": "cpu", "dtype": "float32", "kv_memory": "64MB", **options})


def greedy(max_tokens: int, **settings: Any) -> SamplingParams:
    """Exactly so many tokens, the likeliest ones."""
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **settings)


def need_smollm2() -> Path:
    """The file of the built-in model; the test is skipped where its package is not installed."""
    pytest.importorskip("transformers")
    try:
        return embedded_path("smollm2")
    except ImportError:
        pytest.skip(f"{EMBEDDED['smollm2'].package} is not installed")


def record(llm: LLM) -> Logits:
    """From now on, all logits that the engine samples from (of the first of n outputs).

    A position that is computed again after a preemption would show up twice, and must not: what
    was sampled there is known.
    """
    seen: Logits = defaultdict(dict)
    run = llm.engine.executor.run

    def watched(step: Any) -> Tensor:
        owners = {seq.row: seq for seq in llm.engine.scheduler.running}
        logits = run(step)
        sampled = [span for span in step.spans if span.sample]
        assert logits.shape[0] == len(sampled)
        for span, row in zip(sampled, logits, strict=True):
            seq = owners[span.row]
            if seq.index == 0:
                assert span.end - 1 not in seen[seq.request_id]
                seen[seq.request_id][span.end - 1] = row.clone()
        return logits

    llm.engine.executor.run = watched  # type: ignore[method-assign]
    return seen


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    """The tokens of each request's first output."""
    return [output.outputs[0].token_ids for output in outputs]


def assert_empty(llm: LLM) -> None:
    """Nothing runs, waits or holds a page."""
    engine = llm.engine
    assert not engine.busy
    assert not engine.requests
    for pool in (engine.manager.stored, engine.manager.dense):
        assert pool.in_use == 0
        assert pool.available == pool.size


def worst(mine: dict[int, Tensor], theirs: dict[int, Tensor]) -> float:
    """The largest difference of logits, relative to the largest of them."""
    assert mine.keys() == theirs.keys()
    a, b = (torch.stack([x[p] for p in sorted(x)]).double() for x in (mine, theirs))
    return float((a - b).abs().max() / b.abs().max())


# Of the tiny tokenizer: 0 is unknown, 1 and 2 begin and end a text, the others are characters.
CHARACTERS = [chr(code) for code in range(32, 126)]
TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def tiny_with_tokenizer(path: Path, family: str = "llama", **settings: Any) -> Any:
    """A tiny random model whose tokens are characters, with a chat template."""
    tokenizers = pytest.importorskip("tokenizers")
    model = tiny_directory(family, path, **settings)
    known = {token: id for id, token in enumerate(["<unk>", "<s>", "</s>", *CHARACTERS])}
    assert len(known) == VOCAB
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="<unk>"))
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    tokenizer.pre_tokenizer, tokenizer.decoder = split, tokenizers.decoders.Fuse()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "eos_token": "</s>",
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return model


def tokens(output) -> list[int]:
    return output.outputs[0].token_ids


def joined(deltas: list[Delta], index: int = 0) -> tuple[str, list[int]]:
    """Text and tokens of one output, put together from its increments."""
    own = [delta for delta in deltas if delta.index == index]
    return "".join(d.text for d in own), [token for d in own for token in d.token_ids]
