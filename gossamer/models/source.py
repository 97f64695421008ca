"""Where a model comes from: its config, its tensors one by one, its tokenizer."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from gossamer.models.config import ModelConfig

Part = tuple[slice, ...]  # of a tensor, along its first dimensions
WHOLE: Part = (slice(None),)


class StoredTensor(Protocol):
    """A tensor of a source. Indexing reads that part, and no more; a torch.Tensor is one too."""

    @property
    def shape(self) -> Sequence[int]: ...

    def __getitem__(self, part: Part, /) -> Tensor: ...


class Source(Protocol):
    """A model that can be loaded, and nothing loaded yet but its config.

    name: for people, without a path. calibration: a file that fits the model, if one comes with it.
    packing: what matrices are stored in, if not in numbers: gguf, int8, int4 or fp8.
    """

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> ModelConfig: ...

    @property
    def calibration(self) -> Path | None: ...

    @property
    def packing(self) -> str | None: ...

    def tensors(
        self,
        names: Collection[str] | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Iterator[tuple[str, StoredTensor]]:
        """(name, tensor) in Hugging Face's names; with `names`, only those of them it has.

        dtype, device: of tensors that are made up here; files hand out what they hold, on the CPU.
        Nothing is in memory but what the caller reads. Raises ValueError, naming the file, for one
        that is damaged, here or where a tensor is read.
        """
        ...

    def tokenizer(self) -> Any:
        """A transformers tokenizer, or None when the model comes without."""
        ...
