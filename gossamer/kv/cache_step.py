"""What a forward pass reads and writes of a paged cache: whoever owns sequences says it so."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gossamer.attention import PREPARED, PreparedMask
from gossamer.attention.varlen import Segments
from gossamer.kv.rule import ChunkMask
from gossamer.ops.prefill_attention import PrefillPlan


@dataclass(frozen=True, eq=False)
class DecodeBatch:
    """Sequences that compute one token each: page tables [N, pages] and lengths [N], int32."""

    stored_table: Tensor
    dense_table: Tensor
    seq_lens: Tensor


@dataclass(frozen=True, eq=False)
class Chunk:
    """Several tokens of one sequence. tokens: which of the step they are.

    past: (whether in dense pages, slots) of the keys from before, in the order of the mask.
    """

    tokens: slice
    mask: ChunkMask
    past: tuple[tuple[bool, Tensor], ...]
    _prepared: dict[int, PreparedMask] = field(default_factory=dict)

    def prepared(self, sliding: int, device: torch.device) -> PreparedMask:
        """The mask of layers with this sliding window, prepared once for all of them."""
        if sliding not in self._prepared:
            mask = self.mask.sliding(sliding)
            self._prepared[sliding] = PREPARED.get(mask, *self.mask.lengths, device)
        return self._prepared[sliding]


@dataclass(frozen=True, eq=False)
class PackedChunks:
    """Chunks of several sequences in one call of attention. tokens: which of the step they are.

    plan: of `varlen_attention`, where all keys are seen dense, or of `prefill_attention`. past:
    slots of the near keys from before in dense pages; None where there are none. past_at, own_at:
    where these and the chunks' own keys go among the near keys. far: slots of the stored keys.
    """

    tokens: slice
    plan: Segments | PrefillPlan
    past: Tensor | None = None
    past_at: Tensor | None = None
    own_at: Tensor | None = None
    far: Tensor | None = None


@dataclass(frozen=True, eq=False)
class CacheStep:
    """Everything that attention in one forward pass depends on; the same for all layers.

    Tokens of `decode` come first, then those of `packed`, then those of the other chunks. slots:
    int64, where each token's K and V go in dense pages, -1 for nowhere. pack_tokens, pack_slots:
    tokens whose blocks are complete and are seen compressed in this very step, and where they are
    stored.
    """

    slots: Tensor
    decode: DecodeBatch | None
    packed: PackedChunks | None = None
    chunks: tuple[Chunk, ...] = ()
    pack_tokens: Tensor | None = None
    pack_slots: Tensor | None = None

    @property
    def sole_decode(self) -> DecodeBatch | None:
        """The batch of single tokens, if there is nothing else in the step."""
        others = self.packed is not None or self.chunks or self.pack_tokens is not None
        return None if others else self.decode
