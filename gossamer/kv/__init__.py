"""The KV cache: what to keep of K and V (policies, bases) and how it lies in memory (layouts)."""

from gossamer.kv.bases import turn_q_and_k
from gossamer.kv.calibration import Calibration
from gossamer.kv.config import KVConfig
from gossamer.kv.folding import fold_v_basis
from gossamer.kv.layouts import Coded, Dense, Side, Sparse
from gossamer.kv.paged_cache import PagedCache
from gossamer.kv.shape import KVShape
from gossamer.kv.store import BlockStore

__all__ = [
    "BlockStore",
    "Calibration",
    "Coded",
    "Dense",
    "KVConfig",
    "KVShape",
    "PagedCache",
    "Side",
    "Sparse",
    "fold_v_basis",
    "turn_q_and_k",
]
