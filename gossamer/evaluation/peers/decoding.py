"""Greedy decoding and log probabilities on a transformers model, one sequence at a time."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

CHUNK = 256  # tokens whose log-softmax is taken at once: [CHUNK, vocabulary] in float32

# The sequence's next tokens [T] -> logits [T or 1, vocabulary], of the last ones.
Step = Callable[[Tensor], Tensor]


def stop_ids(model: Any) -> frozenset[int]:
    """The tokens that end a text."""
    config = getattr(model, "generation_config", None) or model.config
    ids = config.eos_token_id
    if ids is None:
        return frozenset()
    return frozenset(ids if isinstance(ids, list | tuple) else [ids])


def greedy(step: Step, prompt: Tensor, max_tokens: int, stops: frozenset[int]) -> list[int]:
    """At most max_tokens tokens, each the likeliest; the stop token is not among them."""
    found: list[int] = []
    tokens = prompt
    while len(found) < max_tokens:
        token = int(step(tokens)[-1].argmax())
        if token in stops:
            break
        found.append(token)
        tokens = torch.tensor([token], device=prompt.device)
    return found


def log_probabilities(logits: Tensor, targets: Tensor) -> list[float]:
    """Of targets [T] by logits [T, vocabulary], in float32."""
    found: list[float] = []
    for part, ids in zip(logits.split(CHUNK), targets.split(CHUNK), strict=True):
        p = part.float().log_softmax(-1)
        found += p.gather(1, ids[:, None]).flatten().tolist()
    return found


def check_tokens(ids: Sequence[int], new: int, model: Any) -> None:
    """Some tokens, that fit the model's context and vocabulary; ValueError otherwise."""
    if not ids:
        raise ValueError("a prompt or window has 0 tokens; must have at least 1")
    if new < 0:
        raise ValueError(f"max_tokens is {new}; must be >= 0")
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is not None and len(ids) + new > longest:
        raise ValueError(
            f"{len(ids)} tokens and {new} new ones; must be at most {longest}, the model's context"
        )
    vocabulary = model.config.vocab_size
    if not all(0 <= i < vocabulary for i in (min(ids), max(ids))):
        raise ValueError(f"token ids {min(ids)} to {max(ids)}; must be 0 to {vocabulary - 1}")
