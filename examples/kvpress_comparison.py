"""A sparse cache next to presses of kvpress: bytes, and how much of the dense answer is left.

    python examples/kvpress_comparison.py benchmarks/data/wikitext2-test-excerpt.txt

kvpress leaves out tokens of the prompt; a SparseCache keeps all tokens and leaves out entries of
each. Without kvpress (pip install kvpress) only the sparse caches run, and a line says so.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer

from gossamer.evaluation.peers.kvpress import import_kvpress, why_not
from gossamer.integrations.transformers import SparseCache, load_model, use_gossamer
from gossamer.models.embedded import embedded_path

SPECS = ("sparse:k=32,v=32", "k=dense:int4@channel,v=sparse:32:int4")
PRESSES = {"SnapKVPress": 0.5, "StreamingLLMPress": 0.5, "KnormPress": 0.5}


@dataclass(frozen=True)
class Answer:
    """Bytes of the cache after the prompt, and the tokens that followed."""

    nbytes: int
    tokens: list[int]


@torch.inference_mode()
def answer(
    model: Any, ids: torch.Tensor, cache: Any, new: int, press: AbstractContextManager[Any]
) -> Answer:
    """Greedy tokens; `press` acts on the prompt only, and positions go on as if all were there."""
    with press:
        logits = model(ids, past_key_values=cache, logits_to_keep=1).logits
    if isinstance(cache, SparseCache):
        nbytes = cache.nbytes
    else:
        nbytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    tokens: list[int] = []
    for step in range(new):
        tokens.append(int(logits[0, -1].argmax()))
        place = torch.tensor([[ids.shape[1] + step]], device=ids.device)
        token = torch.tensor([[tokens[-1]]], device=ids.device)
        logits = model(token, past_key_values=cache, position_ids=place).logits
    return Answer(nbytes, tokens)


def main(
    text: Annotated[Path, typer.Argument(help="A text file; its beginning is the prompt.")],
    model: Annotated[str, typer.Option(help="A directory or .gguf file.")] = "",
    tokens: Annotated[int, typer.Option(help="Tokens of the prompt.")] = 512,
    new: Annotated[int, typer.Option(help="Tokens of the answer.")] = 16,
) -> None:
    """Print a line for each cache."""
    loaded, tokenizer = load_model(model or embedded_path("smollm2"))
    ids = tokenizer(text.read_text(), return_tensors="pt")["input_ids"][:, :tokens]

    def own_cache() -> Any:
        return transformers.DynamicCache(config=loaded.config)

    dense = answer(loaded, ids, own_cache(), new, nullcontext())

    def show(name: str, found: Answer) -> None:
        same = sum(a == b for a, b in zip(found.tokens, dense.tokens, strict=True))
        share = found.nbytes / dense.nbytes
        print(f"{name}: {share:.0%} of the bytes, {same} of {new} tokens as with all of them")

    show("DynamicCache", dense)
    for spec in SPECS:
        with use_gossamer(loaded, spec):
            cache = SparseCache(loaded.config, spec)
            show(spec, answer(loaded, ids, cache, new, nullcontext()))
    if reason := why_not():
        print(f"no presses: {reason}")
        return
    for name, ratio in PRESSES.items():
        press = getattr(import_kvpress(), name)(compression_ratio=ratio)
        show(f"{name}({ratio})", answer(loaded, ids, own_cache(), new, press(loaded)))


if __name__ == "__main__":
    typer.run(main)
