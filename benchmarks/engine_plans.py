"""What to measure of the engine on which kind of machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

LLAMA = Path(__file__).parent / "models/llama-3-8b"


@dataclass(frozen=True)
class Plan:
    """What to run on a kind of machine. modes: of transformers."""

    model: str
    dtype: str
    random_weights: bool
    parts: tuple[str, ...]
    caches: tuple[str, ...]
    modes: tuple[str, ...]
    batches: tuple[int, ...]
    context: int
    long_batches: tuple[int, ...]
    long_context: int
    memory: str
    memory_context: int
    output: int = 64


PLANS = {
    "cpu": Plan(
        model="smollm2",
        dtype="float32",
        random_weights=False,
        parts=("transformers", "context"),
        caches=("dense", "sparse:k=32,v=32"),
        modes=("transformers",),
        batches=(1, 8),
        context=128,
        long_batches=(1, 8),
        long_context=8128,
        memory="2GB",
        memory_context=8128,
    ),
    "cuda": Plan(
        model=str(LLAMA),
        dtype="bfloat16",
        random_weights=True,
        parts=("context", "memory", "transformers"),
        caches=("dense", "sparse:k=40,v=40"),
        modes=("transformers", "transformers static"),
        batches=(32,),
        context=2048,  # transformers computes all prompts at once
        long_batches=(32,),
        long_context=8192,
        memory="40GB",
        memory_context=32768,
    ),
}
QUICK: dict[str, Any] = {
    "batches": (1, 2),
    "context": 64,
    "long_batches": (1, 2),
    "long_context": 128,
}
QUICK |= {"memory": "8MB", "memory_context": 256, "output": 16}
