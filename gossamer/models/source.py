"""Where a model comes from: its config, its tensors one by one, its tokenizer."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from gossamer.models.config import ModelConfig


class Source(Protocol):
    """A model that can be loaded, and nothing loaded yet but its config.

    name: for people, without a path. calibration: a file that fits the model, if one comes with it.
    """

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> ModelConfig: ...

    @property
    def calibration(self) -> Path | None: ...

    def tensors(
        self,
        names: Collection[str] | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Iterator[tuple[str, Tensor]]:
        """(name, whole tensor) in Hugging Face's names; with `names`, only those of them it has.

        dtype, device: of tensors that are made up here; files hand out what they hold, on the CPU.
        One tensor at a time is in memory, apart from what the caller keeps. Raises ValueError,
        naming the file, for one that is damaged.
        """
        ...

    def tokenizer(self) -> Any:
        """A transformers tokenizer, or None when the model comes without."""
        ...
