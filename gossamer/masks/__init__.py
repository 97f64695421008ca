"""Which query sees which key: masks, their algebra, and their tiles.

To add one, see docs/masks.md.
"""

from gossamer.masks.base import EMPTY, FULL, MIXED, Mask
from gossamer.masks.big_bird import BigBird
from gossamer.masks.big_bird_near import BigBirdNear
from gossamer.masks.block_diagonal import BlockDiagonal
from gossamer.masks.causal import Causal
from gossamer.masks.dense import DenseMask
from gossamer.masks.dilated import Dilated
from gossamer.masks.document_ids import DocumentIds
from gossamer.masks.documents import Documents
from gossamer.masks.drawing import draw, text
from gossamer.masks.fixed import Fixed
from gossamer.masks.full import Full
from gossamer.masks.longformer import Longformer
from gossamer.masks.prefix_lm import PrefixLM
from gossamer.masks.presets import named
from gossamer.masks.selection import per_batch, per_head
from gossamer.masks.sliding import Sliding
from gossamer.masks.streaming import Streaming
from gossamer.masks.strided import Strided
from gossamer.masks.tiles import TileCounts, TileMap
from gossamer.masks.tokens import FirstKeys, Keys, Queries

__all__ = [
    "EMPTY",
    "FULL",
    "MIXED",
    "BigBird",
    "BigBirdNear",
    "BlockDiagonal",
    "Causal",
    "DenseMask",
    "Dilated",
    "DocumentIds",
    "Documents",
    "FirstKeys",
    "Fixed",
    "Full",
    "Keys",
    "Longformer",
    "Mask",
    "PrefixLM",
    "Queries",
    "Sliding",
    "Streaming",
    "Strided",
    "TileCounts",
    "TileMap",
    "draw",
    "named",
    "per_batch",
    "per_head",
    "text",
]
