"""The blocks of K or of V: rows in, rows out, in the layout and by the ranking of a policy."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.kv.layouts import Side
from gossamer.kv.policies import Ranking
from gossamer.ops import kv_pack, kv_unpack
from gossamer.ops.kv_block import BLOCK_TOKENS
from gossamer.ops.kv_checks import check_whole_blocks

MAGNITUDE = Ranking()


@dataclass(frozen=True, eq=False)
class BlockStore:
    """Blocks of one layer. blocks: uint8 [num_blocks, heads, side.block_bytes(head_dim)].

    Rows of a policy that selects by channel are stored as channels: 32 channels of 32 tokens are a
    block of their own, whose rows are channels and whose entries are tokens (channels are padded
    with zeros to a multiple of 32). Such blocks are written and read whole.
    """

    side: Side
    head_dim: int
    blocks: Tensor

    @classmethod
    def allocate(
        cls, side: Side, num_blocks: int, heads: int, head_dim: int, device: str = "cpu"
    ) -> "BlockStore":
        """A store of zeros. Raises ValueError for a head_dim that the layout cannot have."""
        shape = (num_blocks, heads, side.block_bytes(head_dim))
        return cls(side, head_dim, torch.zeros(shape, dtype=torch.uint8, device=device))

    @property
    def nbytes(self) -> int:
        return self.blocks.numel()

    def write(self, x: Tensor, slots: Tensor, ranking: Ranking = MAGNITUDE) -> None:
        """Pack rows x [N, heads, head_dim] into slots [N]; see `kv_pack` for both."""
        fmt = self.side.format(self.head_dim)
        if not self.side.by_channel:
            kv_pack(x, self.blocks, slots, fmt, weights=ranking.weights, scores=ranking.scores)
            return
        scores = ranking.scores
        if ranking.weights is not None:
            scores = x.float() * ranking.weights
        kv_pack(
            self._by_channel(x),
            self._channel_blocks(),
            self._whole_blocks(slots),
            fmt,
            scores=None if scores is None else self._by_channel(scores),
        )

    def read(self, slots: Tensor, dtype: torch.dtype = torch.float16) -> Tensor:
        """Rows [N, heads, head_dim] of slots [N]; see `kv_unpack`."""
        fmt = self.side.format(self.head_dim)
        if not self.side.by_channel:
            return kv_unpack(self.blocks, slots, fmt, dtype)
        rows = kv_unpack(self._channel_blocks(), self._whole_blocks(slots), fmt, dtype)
        heads = self.blocks.shape[1]
        groups = rows.shape[1] // heads
        # [blocks, channel, heads, group, token] -> [blocks, token, heads, group, channel]
        split = rows.view(rows.shape[0] // BLOCK_TOKENS, BLOCK_TOKENS, heads, groups, BLOCK_TOKENS)
        joined = split.permute(0, 4, 2, 3, 1).reshape(rows.shape[0], heads, groups * BLOCK_TOKENS)
        return joined[..., : self.head_dim].contiguous()

    def _by_channel(self, x: Tensor) -> Tensor:
        """[N, heads, head_dim] -> [N, heads * groups of channels, 32 tokens]; rows are channels."""
        expected = [x.shape[0], self.blocks.shape[1], self.head_dim]
        if list(x.shape) != expected or x.shape[0] % BLOCK_TOKENS:
            raise ValueError(
                f"rows have shape {list(x.shape)}; must be {expected}, whole blocks of "
                f"{BLOCK_TOKENS}, as the policy selects by channel"
            )
        padded = torch.nn.functional.pad(x, (0, -self.head_dim % BLOCK_TOKENS))
        groups = padded.shape[2] // BLOCK_TOKENS
        blocks = x.shape[0] // BLOCK_TOKENS
        split = padded.view(blocks, BLOCK_TOKENS, x.shape[1], groups, BLOCK_TOKENS)
        return split.permute(0, 4, 2, 3, 1).reshape(x.shape[0], x.shape[1] * groups, BLOCK_TOKENS)

    def _channel_blocks(self) -> Tensor:
        groups = -(-self.head_dim // BLOCK_TOKENS)
        num_blocks, heads, nbytes = self.blocks.shape
        return self.blocks.view(num_blocks, heads * groups, nbytes // groups)

    @staticmethod
    def _whole_blocks(slots: Tensor) -> Tensor:
        """The slots themselves; ValueError unless they are whole blocks (checked on the CPU)."""
        if slots.shape[0] % BLOCK_TOKENS:
            raise ValueError(f"{slots.shape[0]} slots; must be whole blocks of {BLOCK_TOKENS}")
        if slots.device.type == "cpu":
            check_whole_blocks("BlockStore", slots)
        return slots
