"""Presses of the package kvpress, which shrink the cache at the prompt's end.

They are a second opinion on this folder's own rules: written by others, run as they are. Tokens
after the prompt keep their positions and stay. Windows are half prompt, half continuation.
"""

import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gossamer.evaluation.peers.method import HALF, check_share, dense_bytes
from gossamer.evaluation.peers.subject import PackagePeer, Step
from gossamer.kv.extras import import_extra
from gossamer.kv.shape import KVShape
from gossamer.ops.checks import one_of

PRESSES = {
    "snapkv": "SnapKVPress",
    "streaming": "StreamingLLMPress",
    "expected": "ExpectedAttentionPress",
    "think": "ThinKPress",
}


def import_kvpress() -> Any:
    """The package. It wraps all attention functions when it is imported, in a way that only
    transformers' own survive; Gossamer's is put back.
    """
    functions = import_extra("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    ours = {name: f for name, f in functions.items() if f.__module__.startswith("gossamer.")}
    module = importlib.import_module("kvpress")
    for name, function in ours.items():
        functions[name] = function
    return module


def why_not() -> str:
    """Why kvpress cannot be used; empty if it can."""
    try:
        module = import_kvpress()
    except Exception as error:  # it pins other versions of transformers, and may not survive ours
        return f"kvpress cannot be imported ({error}); pip install kvpress"
    missing = [name for name in PRESSES.values() if not hasattr(module, name)]
    return f"this kvpress has no {', '.join(missing)}" if missing else ""


@dataclass(frozen=True)
class PressSettings:
    """press: a key of PRESSES. number: the share that stays; for think, of channels pruned."""

    press: str
    number: float

    def __post_init__(self) -> None:
        one_of("press", self.press, PRESSES)
        if self.press != "think":
            check_share("share", self.number)
        elif not 0 <= self.number < 1:
            raise ValueError(f"pruned is {self.number}; must be >= 0 and < 1")

    def bytes_per_token(self, shape: KVShape) -> float:
        """Float16. ThinK's channels are zeros here; they are counted as left out."""
        if self.press != "think":
            return self.number * dense_bytes(shape)
        kept = shape.head_dim - int(self.number * shape.head_dim)
        return HALF * (kept + shape.head_dim) * shape.kv_heads * shape.layers

    def make(self) -> Any:
        """The press itself."""
        press = getattr(import_kvpress(), PRESSES[self.press])
        if self.press == "think":
            return press(key_channel_compression_ratio=self.number)
        return press(compression_ratio=1 - self.number)


class PressPeer(PackagePeer):
    """Raises ImportError where kvpress is not installed."""

    settings: PressSettings
    compresses_prompts = True

    def __init__(self, model: Any, tokenizer: Any, name: str, settings: PressSettings) -> None:
        super().__init__(model, tokenizer, name, settings, why_not())

    def _logits(self, ids: Tensor) -> Tensor:
        step, prompt = self._step(last=0), len(ids) // 2
        if prompt == 0:
            return step(ids)
        return torch.cat([step(ids[:prompt]), step(ids[prompt:])])

    def _step(self, last: int) -> Step:
        """Of a new cache: the first call is the prompt, which the press shrinks."""
        cache, press, seen = import_extra("transformers").DynamicCache(), self.settings.make(), 0

        def step(ids: Tensor) -> Tensor:
            nonlocal seen
            # Given, because the shrunken cache would say otherwise. kvpress tells the prompt by
            # cache_position, which transformers 5 hands on but no longer makes itself.
            positions = seen + torch.arange(len(ids), device=ids.device)
            settings = {"past_key_values": cache, "use_cache": True, "logits_to_keep": last}
            settings |= {"position_ids": positions[None], "cache_position": positions}
            if seen == 0:
                with press(self.model):
                    output = self.model(ids[None], **settings)
            else:
                output = self.model(ids[None], **settings)
            seen += len(ids)
            logits: Tensor = output.logits[0]
            return logits

        return step
