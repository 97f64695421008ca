"""Stream tokens as they are generated, two requests at a time, with time to first token.

    python examples/streaming.py

Leaving the loop early would abort what still runs and free its pages.
"""

import time

from gossamer.engine import LLM, SamplingParams

PROMPTS = ["The sea is", "A lighthouse keeper"]


def main() -> None:
    """Print every piece of text with its request and the time at which it came."""
    params = [SamplingParams(temperature=0.8, seed=seed, max_tokens=12) for seed in (1, 2)]
    with LLM("smollm2", kv="sparse:k=32,v=32", kv_memory="256MB") as llm:
        start, first = time.perf_counter(), dict[str, float]()
        for delta in llm.stream(PROMPTS, params):
            now = time.perf_counter() - start
            first.setdefault(delta.request_id, now)
            print(f"{now:6.3f} s  {delta.request_id}: {delta.text!r}")
            if delta.request.finished:
                text = delta.request.outputs[0].text
                print(f"{now:6.3f} s  {delta.request_id} finished: {text!r}")
        for request_id, seconds in first.items():
            print(f"{request_id}: first token after {seconds:.3f} s")


if __name__ == "__main__":
    main()
