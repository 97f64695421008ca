"""transformers' own QuantizedCache, with the backend optimum-quanto or HQQ.

Nothing is simulated: the model's own attention reads the cache. Prompts are read exactly, then
quantized; of later tokens up to 128 stay exact, and when they are that many the whole cache is
decoded and quantized again. Teacher-forced windows are read in blocks of 32 tokens, each of which
sees itself exactly and what came before as the cache has it.
"""

import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gossamer.evaluation.peers.method import HALF
from gossamer.evaluation.peers.subject import PackagePeer, Step
from gossamer.kv.extras import import_extra
from gossamer.kv.shape import KVShape
from gossamer.ops.checks import one_of

BLOCK = 32
GROUP = 64  # consecutive channels that share a scale and a zero point: transformers' default
RESIDUAL = 128


@dataclass(frozen=True)
class Backend:
    """module, package: what to import and install. axis: that of groups within a token."""

    module: str
    package: str
    bits: tuple[int, ...]
    axis: int


BACKENDS = {
    "quanto": Backend("optimum.quanto", "optimum-quanto", (2, 4), 0),
    "hqq": Backend("hqq.core.quantize", "hqq", (2, 4, 8), 1),
}


def why_not(backend: str) -> str:
    """Why the backend cannot be used; empty if it can."""
    for module, package in (
        ("transformers", "gossamer[models]"),
        (BACKENDS[backend].module, BACKENDS[backend].package),
    ):
        try:
            importlib.import_module(module)
        except Exception as error:  # packages that do not fit the others raise whatever they like
            return f"{module} cannot be imported ({error}); pip install {package}"
    return ""


def why_neither() -> str:
    """Why no backend can be used; empty if one can."""
    reasons = [why_not(backend) for backend in BACKENDS]
    return "; ".join(reasons) if all(reasons) else ""


@dataclass(frozen=True)
class QuantizedSettings:
    """bits: 2 or 4, with hqq also 8. Raises ValueError for others and for unknown backends."""

    bits: int
    backend: str = "quanto"

    def __post_init__(self) -> None:
        one_of("backend", self.backend, BACKENDS)
        valid = BACKENDS[self.backend].bits
        if self.bits not in valid:
            names = ", ".join(map(str, valid))
            raise ValueError(f"bits is {self.bits}; must be one of {names} for {self.backend}")

    def bytes_per_token(self, shape: KVShape) -> float:
        """Codes, and a scale and zero point for 64 of them, counted as float16 like dense K and V.

        Raises ValueError for a token that groups do not divide.
        """
        entries = shape.kv_heads * shape.head_dim
        if entries % GROUP:
            raise ValueError(f"a token has {entries} entries; must be a multiple of {GROUP}")
        return 2 * entries * shape.layers * (self.bits / 8 + 2 * HALF / GROUP)


class QuantizedCachePeer(PackagePeer):
    """Raises ImportError where the backend is not installed."""

    settings: QuantizedSettings

    def __init__(self, model: Any, tokenizer: Any, name: str, settings: QuantizedSettings) -> None:
        super().__init__(model, tokenizer, name, settings, why_not(settings.backend))

    def _logits(self, ids: Tensor) -> Tensor:
        step = self._step(last=0)
        return torch.cat([step(block) for block in ids.split(BLOCK)])

    def _step(self, last: int) -> Step:
        """Of a new cache; logits of the `last` tokens, 0 for all."""
        backend = BACKENDS[self.settings.backend]
        cache = import_extra("transformers").QuantizedCache(
            backend=self.settings.backend,
            config=self.model.config,
            nbits=self.settings.bits,
            axis_key=backend.axis,
            axis_value=backend.axis,
            q_group_size=GROUP,
            residual_length=RESIDUAL,
        )

        def step(ids: Tensor) -> Tensor:
            output = self.model(
                ids[None], past_key_values=cache, use_cache=True, logits_to_keep=last
            )
            logits: Tensor = output.logits[0]
            return logits

        return step
