"""Greedy `generate` of padded batches, for tests of the sparse cache."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.models.tiny import tiny_model


def endless(model: Any) -> Any:
    """A model that has no token to end with; `generate` would take it from here."""
    model.generation_config.eos_token_id = None
    model.config.eos_token_id = None
    return model


def endless_tiny(family: str, **settings: Any) -> Any:
    """The same for a tiny random model."""
    return endless(tiny_model(family, **settings))


def padded(prompts: Sequence[Sequence[int]], side: str = "left") -> dict[str, torch.Tensor]:
    """input_ids and attention_mask."""
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        place = slice(longest - len(prompt), None) if side == "left" else slice(len(prompt))
        ids[row, place], mask[row, place] = torch.tensor(prompt), 1
    return {"input_ids": ids, "attention_mask": mask}


def by_transformers(*args: Any, **options: Any) -> list[list[int]]:
    """`generated` with transformers' own cache; skips what a version cannot do with that either.

    5.0.0 refuses prefill_chunk_size, and prompt lookup without a token to end with.
    """
    try:
        return generated(*args, **options)
    except (TypeError, ValueError) as error:
        pytest.skip(f"transformers itself cannot: {error}")


@torch.inference_mode()
def generated(
    model: Any, prompts: Sequence[Sequence[int]], new: int, **options: Any
) -> list[list[int]]:
    """What `generate` adds to each prompt of a batch that is padded on the left."""
    inputs = {name: x.to(model.device) for name, x in padded(prompts).items()}
    given = {"do_sample": False, "max_new_tokens": new, "pad_token_id": 0, **options}
    out = model.generate(**inputs, **given)
    assert out.shape[1] == inputs["input_ids"].shape[1] + new
    return out[:, -new:].tolist()
