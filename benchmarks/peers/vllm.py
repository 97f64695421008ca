"""vLLM as a peer of the engine: the same offline loads, on weights that it makes up."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def vllm_engine(
    model: Path, kv: str, max_model_len: int
) -> Iterator[Callable[[list[list[int]], list[int]], int]]:
    """A function of prompts and output lengths that returns how many tokens came out.

    kv: dense, or a name of vLLM's kv_cache_dtype such as fp8. Raises ImportError without vLLM.
    """
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - loads CUDA when it is imported

    options: dict[str, Any] = {} if kv == "dense" else {"kv_cache_dtype": kv}
    llm = LLM(
        model=str(model), load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16",
        max_model_len=max_model_len, gpu_memory_utilization=0.85, enable_prefix_caching=False,
        **options,
    )  # fmt: skip

    def generate(prompts: list[list[int]], outputs: list[int]) -> int:
        params = [
            SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, detokenize=False)
            for n in outputs
        ]
        done = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in done)

    yield generate


def vllm_version() -> str:
    import vllm  # noqa: PLC0415

    return str(vllm.__version__)
