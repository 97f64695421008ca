"""Log probabilities of prompt tokens: those of the whole model, however the prompt is cut."""

from typing import Any

import pytest
import torch

from gossamer.engine import LLM, SamplingParams
from tests.models.tiny import VOCAB, expected_logits, tiny_directory

PARAMS = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("tiny")
    return path, tiny_directory("llama", path)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, VOCAB, (n,), generator=generator).tolist() for n in (300, 1, 2, 33)]


@pytest.mark.parametrize("budget", [8192, 64])
def test_dense_equals_transformers(model: Any, budget: int):
    path, reference = model
    with LLM(path, kv_memory="64MiB", max_num_batched_tokens=budget, max_num_seqs=8) as llm:
        for prompt, output in zip(prompts(), llm.generate(prompts(), PARAMS), strict=True):
            ids = torch.tensor(prompt)
            logits = expected_logits(reference, ids).log_softmax(-1)
            expected = logits[:-1].gather(1, ids[1:, None]).flatten().tolist()
            assert output.prompt_logprobs is not None
            assert output.prompt_logprobs[0] is None
            assert output.prompt_logprobs[1:] == pytest.approx(expected, abs=1e-4)
            assert len(output.outputs[0].token_ids) == 2


def test_sparse_is_the_same_in_chunks_and_after_preemption(model: Any):
    path, _ = model
    found = []
    for options in ({}, {"max_num_batched_tokens": 64}, {"kv_memory": 150_000}):
        common = {"kv": "sparse:k=8,v=8", "kv_memory": "64MiB", "max_num_seqs": 8}
        with LLM(path, **{**common, **options}) as llm:
            outputs = llm.generate([prompts()[0]] * 3, PARAMS)  # equal prompts: no prefix is used
            found += [output.prompt_logprobs[1:] for output in outputs]
    for other in found[1:]:
        assert other == pytest.approx(found[0], abs=1e-3)


def test_without_asking_there_is_none(model: Any):
    with LLM(model[0], kv_memory="64MiB") as llm:
        assert llm.generate([[5, 6]], SamplingParams(max_tokens=1))[0].prompt_logprobs is None
