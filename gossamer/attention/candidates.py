"""What may compute a call: kernels, their tiles, and torch's own attention."""

import re
from dataclasses import dataclass
from typing import Any

from torch import Tensor

UNTILED = ("rows", "sdpa")


@dataclass(frozen=True)
class Candidate:
    """A kernel with its tiles; its str names it in records and files: "cuda 64x32 limit=12".

    kernel: block (tiles), rows (lists of keys) or sdpa. backend: of our op; of SDPA: flash, cudnn,
    mask (with the mask as a tensor) or torch (its own choice). tile: of the block kernel. limit:
    most tiles of a piece of a row, 0 for whole rows.
    """

    kernel: str
    backend: str
    tile: tuple[int, int] = (0, 0)
    limit: int = 0

    def __str__(self) -> str:
        return f"{self.family} limit={self.limit}" if self.limit else self.family

    @property
    def family(self) -> str:
        """What candidates with the same coefficients have in common."""
        if self.kernel == "block":
            return f"{self.backend} {self.tile[0]}x{self.tile[1]}"
        return f"{self.kernel} {self.backend}"

    @property
    def facts_tile(self) -> tuple[int, int]:
        """The tile size of the facts that its cost depends on."""
        return self.tile if self.kernel == "block" else (64, 64)

    @classmethod
    def parse(cls, text: str) -> "Candidate":
        """The inverse of str; ValueError for anything else."""
        block = re.fullmatch(r"(\w+) (\d+)x(\d+)(?: limit=(\d+))?", text)
        if block is not None:
            backend, *numbers = block.groups()
            tile_q, tile_k, limit = (int(number or 0) for number in numbers)
            return cls("block", backend, (tile_q, tile_k), limit)
        kernel, _, backend = text.partition(" ")
        if kernel not in UNTILED or not backend:
            raise ValueError(
                f"candidate is {text!r}; must be as in cuda 64x32, rows triton or sdpa flash"
            )
        return cls(kernel, backend)


@dataclass(frozen=True)
class Call:
    """What of a call's arguments decides how long it takes."""

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    itemsize: int

    @classmethod
    def of(cls, q: Any, k: Any) -> "Call":
        """Of tensors [batch, heads, length, head_dim]."""
        batch, heads, q_len, head_dim = q.shape
        return cls(batch, heads, k.shape[1], q_len, k.shape[2], head_dim, q.element_size())

    @property
    def nbytes(self) -> int:
        """Of q, k, v and the result, each once."""
        queries = 2 * self.heads * self.q_len
        keys = 2 * self.kv_heads * self.kv_len
        return self.batch * (queries + keys) * self.head_dim * self.itemsize


@dataclass(frozen=True, eq=False)
class Arguments:
    """The arguments of a call, checked."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    scale: float
    softcap: float
    return_lse: bool

    @property
    def call(self) -> Call:
        return Call.of(self.q, self.k)

    @property
    def plain(self) -> bool:
        """Whether scores are q k times a positive number."""
        return self.bias is None and self.softcap == 0 and self.scale > 0

    @property
    def grouped(self) -> bool:
        """Whether query heads share KV heads."""
        return self.q.shape[1] != self.k.shape[1]
