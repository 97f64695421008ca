"""The engine on a GPU: graphs against eager steps, and both against the CPU in float32."""

from typing import Any

import pytest
import torch

from gossamer.engine import LLM, SamplingParams
from tests.models.adapters import save_adapter
from tests.models.tiny import VOCAB, tiny_directory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

SPECS = ("dense", "sparse:k=40,v=24", "sparse:k=32,v=32,window=64,sink=32", "dense:int8")
LENGTHS = (1, 31, 32, 33, 64, 100, 257, 700)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("tiny")
    tiny_directory("llama", path, head_dim=64, max_position_embeddings=4096)
    return path


def served(path: Any, lengths: tuple[int, ...] = LENGTHS, **options: Any) -> tuple[Any, Any]:
    """Greedy tokens of random prompts, and all logits [steps, vocab] in the order of sampling."""
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, VOCAB, (n,), generator=generator).tolist() for n in lengths]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with LLM(path, kv_memory="256MiB", max_num_seqs=16, **options) as llm:
        run, seen = llm.engine.executor.run, []

        def recorded(step: Any) -> torch.Tensor:
            logits = run(step)
            seen.append(logits.float().cpu())
            return logits

        llm.engine.executor.run = recorded  # type: ignore[method-assign]
        outputs = llm.generate(prompts, params)
        assert llm.engine.manager.stored.in_use == llm.engine.manager.dense.in_use == 0
    return [output.outputs[0].token_ids for output in outputs], torch.cat(seen)


@pytest.mark.parametrize("kv", SPECS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_graphs_equal_eager_steps(directory: Any, kv: str, dtype: str):
    tokens, logits = served(directory, kv=kv, dtype=dtype, device="cuda")
    eager, expected = served(directory, kv=kv, dtype=dtype, device="cuda", enforce_eager=True)
    # The same kernels on the same numbers, but for a batch that is filled up with padding.
    same = [a == b for a, b in zip(tokens, eager, strict=True)]
    assert sum(same) >= (len(same) if dtype == "float32" else len(same) - 1)
    if all(same):
        assert (logits - expected).abs().max() < 0.05 * expected.abs().max()


@pytest.mark.parametrize("kv", SPECS)
def test_float32_equals_the_cpu(directory: Any, kv: str):
    tokens, logits = served(directory, kv=kv, dtype="float32", device="cuda")
    expected_tokens, expected = served(directory, kv=kv, dtype="float32", device="cpu")
    assert tokens == expected_tokens
    assert (logits - expected).abs().max() < 1e-3 * expected.abs().max()


@pytest.mark.parametrize("kv", SPECS)
@pytest.mark.parametrize("budget", [8192, 512])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 0.1), ("float32", 0.01)])
def test_long_prompts(directory: Any, kv: str, budget: int, dtype: str, tolerance: float):
    """Groups of queries, masked and open parts, chunks: near float32 on the CPU."""
    options = {"kv": kv, "max_num_batched_tokens": budget}
    lengths = (3500, 1500, 2048)
    _, expected = served(directory, lengths, dtype="float32", device="cpu", **options)
    _, logits = served(directory, lengths, dtype=dtype, device="cuda", **options)
    first, wanted = logits[: len(lengths)], expected[: len(lengths)]
    # Which entries are kept is decided by numbers rounded otherwise, so a few differ.
    assert (first - wanted).abs().max() < tolerance * wanted.abs().max()


@pytest.mark.parametrize("eager", [False, True])
def test_adapters_in_graphs_equal_the_cpu(tmp_path: Any, eager: bool):
    """Batches of none, one and several; a slot that another adapter takes while graphs stay."""
    torch.manual_seed(0)
    model = tiny_directory("llama", tmp_path / "base", head_dim=64)
    lora = {n: save_adapter(tmp_path / n, model, seed=i, r=4 + i) for i, n in enumerate("abc")}
    generator = torch.Generator().manual_seed(1)
    prompts = [
        torch.randint(3, VOCAB, (n,), generator=generator).tolist() for n in (5, 70, 33, 200)
    ]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)

    def answers(device: str) -> list[Any]:
        options = {"lora": lora, "max_num_seqs": 16, "kv_memory": "64MiB", "dtype": "float32"}
        with LLM(tmp_path / "base", device=device, enforce_eager=eager, **options) as llm:
            found = []
            for names in (None, "b", ["a", "b", None, "c"], [None, "c", "c", None]):
                outputs = llm.generate(prompts, params, lora=names)
                found.append([output.outputs[0].token_ids for output in outputs])
            llm.unload_lora("a")
            llm.load_lora("other", lora["b"])
            assert llm.generate(prompts, params, lora="other")[1].outputs == outputs_of(llm, "b")
            return found

    def outputs_of(llm: LLM, name: str) -> Any:
        return llm.generate(prompts, params, lora=name)[1].outputs

    assert answers("cuda") == answers("cpu")
