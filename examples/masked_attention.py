"""Attention under masks: combine them, see what they skip, draw one.

    python examples/masked_attention.py

One definition gives the predicate (also for FlexAttention), the dense tensor and the tiles that
kernels skip by. The result is compared with torch's attention under the dense mask.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

import gossamer
from gossamer.attention import prepare
from gossamer.masks import Causal, Documents, Longformer, Mask, Streaming, Strided, TileMap, text

LENGTH = 1024
MASKS: dict[str, Mask] = {
    "longformer": Longformer(window=32, tokens=[0, range(512, 544)]),
    "packed documents": Documents([700, 324]) & Causal(),
    "streaming and strided": Streaming(sinks=4, window=64) | Strided(stride=128),
}


def main() -> None:
    """Print density, tiles and the largest difference from torch for each mask; draw the last."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k, v = torch.randn(3, 1, 4, LENGTH, 64, device=device)
    for name, mask in MASKS.items():
        prepared = prepare(
            mask, LENGTH, LENGTH, device=device
        )  # once; each call is then one launch
        out = gossamer.masked_attention(q, k, v, prepared)
        dense = mask.dense(LENGTH, LENGTH).to(device)
        difference = (out - scaled_dot_product_attention(q, k, v, attn_mask=dense)).abs().max()
        counts = TileMap.build(mask, LENGTH, LENGTH, tile=(64, 64)).counts()
        tiles = f"{counts.full} full, {counts.partial} partial, {counts.empty} empty tiles"
        print(f"{name}: {counts.density:.1%} visible, {tiles}; off by {difference:.1e}")
    print(text(mask, LENGTH, LENGTH))


if __name__ == "__main__":
    main()
