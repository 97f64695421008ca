"""A KV policy of your own: which entries of K and V a sparse cache keeps.

    python examples/policy.py

A policy turns rows [tokens, kv_heads, head_dim] into a `Ranking`; packing keeps the entries that
rank highest. This one knows how strong the queries are in each channel: its rows are less like the
originals than those of `magnitude`, and the scores that they give are closer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.kv import BlockStore, KVConfig
from gossamer.kv.policies import Policy, Ranking, make_policy

TOKENS, HEADS, HEAD_DIM = 128, 4, 64


@dataclass(frozen=True, eq=False)
class QueryStrength(Policy):
    """Rank keys by |k_c| strength_c. strength: [kv_heads, head_dim], float32."""

    strength: Tensor
    name = "query_strength"
    sides = ("k",)

    def rank(self, x: Tensor, state: object = None) -> Ranking:
        return Ranking(weights=self.strength)


def stored(policy: Policy, k: Tensor) -> Tensor:
    """Rows k as a cache that keeps 24 of 64 entries gives them back."""
    side = KVConfig.parse("sparse:k=24,v=24").k
    store = BlockStore.allocate(side, num_blocks=TOKENS // 32, heads=HEADS, head_dim=HEAD_DIM)
    slots = torch.arange(TOKENS)
    store.write(k, slots, policy.rank(k, policy.start()))
    return store.read(slots).float()


def main() -> None:
    """Print the relative errors of keys and of scores for three policies."""
    torch.manual_seed(0)
    strength = torch.rand(HEADS, HEAD_DIM).square()
    k, q = torch.randn(TOKENS, HEADS, HEAD_DIM), strength * torch.randn(TOKENS, HEADS, HEAD_DIM)
    scores = torch.einsum("qhd,khd->hqk", q, k)
    for policy in (make_policy("random"), make_policy("magnitude"), QueryStrength(strength)):
        kept = stored(policy, k)
        off = torch.einsum("qhd,khd->hqk", q, kept) - scores
        rows, of_scores = (kept - k).norm() / k.norm(), off.norm() / scores.norm()
        print(
            f"{policy.name}: relative error {rows:.3f} of the keys, {of_scores:.3f} of the scores"
        )


if __name__ == "__main__":
    main()
