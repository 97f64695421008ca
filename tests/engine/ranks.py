"""What tests of several ranks have in common."""

from typing import Any

from gossamer.engine import LLM, SamplingParams
from tests.models.tiny import VOCAB

PROMPTS = [list(range(3, VOCAB)), [5, 6, 7], [8] * 40]
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
OPTIONS: dict[str, Any] = {"device": "cpu", "kv_memory": "32MiB", "max_num_seqs": 8}
PROMISED = 10  # seconds from the death of a rank to the error


def tokens_of(llm: LLM) -> list[list[int]]:
    return [out.outputs[0].token_ids for out in llm.generate(PROMPTS, GREEDY)]


def alone(path: Any, **options: Any) -> list[list[int]]:
    """The tokens of one rank."""
    with LLM(path, **OPTIONS, **options) as llm:
        return tokens_of(llm)
