"""The blocks of K or of V: rows in, rows out, in the layout and by the ranking of a policy."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.kv.layouts import Side
from gossamer.kv.policies import Ranking
from gossamer.ops import kv_pack, kv_unpack
from gossamer.ops.kv_block import BLOCK_TOKENS

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
            _whole_blocks(slots),
            fmt,
            scores=None if scores is None else self._by_channel(scores),
        )

    def read(self, slots: Tensor, dtype: torch.dtype = torch.float16) -> Tensor:
        """Rows [N, heads, head_dim] of slots [N]; see `kv_unpack`."""
        fmt = self.side.format(self.head_dim)
        if not self.side.by_channel:
            return kv_unpack(self.blocks, slots, fmt, dtype)
        rows = kv_unpack(self._channel_blocks(), _whole_blocks(slots), fmt, dtype)
        heads = self.blocks.shape[1]
        # [blocks, channel, heads, group, token] -> [blocks, token, heads, group, channel]
        split = rows.view(-1, BLOCK_TOKENS, heads, rows.shape[1] // heads, BLOCK_TOKENS)
        joined = split.permute(0, 4, 2, 3, 1).reshape(slots.shape[0], heads, -1)
        return joined[..., : self.head_dim].contiguous()

    def _by_channel(self, x: Tensor) -> Tensor:
        """[N, heads, head_dim] -> [N, heads * groups of channels, 32 tokens]; rows are channels."""
        _check_whole(x.shape[0])
        padded = torch.nn.functional.pad(x, (0, -self.head_dim % BLOCK_TOKENS))
        split = padded.view(-1, BLOCK_TOKENS, x.shape[1], padded.shape[2] // 32, 32)
        return split.permute(0, 4, 2, 3, 1).reshape(x.shape[0], -1, BLOCK_TOKENS)

    def _channel_blocks(self) -> Tensor:
        groups = -(-self.head_dim // BLOCK_TOKENS)
        num_blocks, heads, _ = self.blocks.shape
        return self.blocks.view(num_blocks, heads * groups, -1)


def _whole_blocks(slots: Tensor) -> Tensor:
    """The slots themselves, checked on the CPU: whole blocks, tokens in order."""
    _check_whole(slots.shape[0])
    groups = slots.view(-1, BLOCK_TOKENS)
    ordered = groups[:, :1] + torch.arange(BLOCK_TOKENS, device=slots.device)
    if slots.device.type == "cpu":
        wrong = (groups != ordered).any(1) | (groups[:, 0] % BLOCK_TOKENS != 0)
        if wrong.any():
            first = groups[wrong][0]
            raise ValueError(
                f"slots {int(first[0])}, {int(first[1])}, ... are not a whole block; must be "
                f"{BLOCK_TOKENS} in order from a multiple of {BLOCK_TOKENS}"
            )
    return slots


def _check_whole(rows: int) -> None:
    if rows % BLOCK_TOKENS:
        raise ValueError(
            f"{rows} rows; must be a multiple of {BLOCK_TOKENS}, as the policy selects by channel"
        )
