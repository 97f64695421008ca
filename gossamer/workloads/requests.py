"""Random requests: the same for an engine and for a server that have the same seed."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """A prompt and how many tokens to generate."""

    ids: tuple[int, ...]
    output: int


@dataclass(frozen=True, kw_only=True)
class RequestMix:
    """How many requests of which lengths. inputs, outputs: least and most tokens.

    prefix: tokens that begin each prompt, on top of `inputs`; there are `prefixes` different ones.
    Raises ValueError for numbers out of range.
    """

    requests: int
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    prefix: int = 0
    prefixes: int = 1

    def __post_init__(self) -> None:
        for name, least in (("requests", 1), ("prefix", 0), ("prefixes", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; must be at least {least}")

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that may come, prompt and output."""
        return self.prefix + self.inputs[1] + self.outputs[1]

    def draw(self, vocab: int, seed: int, variation: str = "") -> list[Request]:
        """Lengths and tokens drawn uniformly, the bounds included.

        Lengths depend on the seed only: those of models with other vocabularies are the same.
        variation: other tokens of the same lengths, which no prefix cache knows.
        """
        lengths, tokens = random.Random(seed), random.Random(f"{seed}{variation}")
        # Lengths first, as in nano-vllm's benchmark.
        drawn = [
            (lengths.randint(*self.inputs), lengths.randint(*self.outputs))
            for _ in range(self.requests)
        ]
        vocabulary = range(vocab)
        starts = [tuple(tokens.choices(vocabulary, k=self.prefix)) for _ in range(self.prefixes)]
        return [
            Request(lengths.choice(starts) + tuple(tokens.choices(vocabulary, k=n)), output)
            for n, output in drawn
        ]
