"""FlexAttention takes the predicate of every mask."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

from gossamer import masks as m
from tests.masks.examples import all_masks


@pytest.mark.parametrize("name", sorted(all_masks(9)))
def test_flex_attention_takes_the_mask(name):
    mask = all_masks(130)[name]
    dense = mask.dense(130, 130)
    assert torch.equal(create_mask(mask.mask_mod, 1, 1, 130, 130, "cpu"), dense)
    blocks = create_block_mask(mask.mask_mod, None, None, 130, 130, device="cpu", BLOCK_SIZE=64)
    padded = torch.zeros(192, 192, dtype=torch.bool)
    padded[:130, :130] = dense
    expected = padded.view(3, 64, 3, 64).any(3).any(1)
    assert torch.equal(blocks.to_dense()[0, 0].bool(), expected)


def test_flex_attention_with_heads_and_batches():
    mask = m.per_batch([m.per_head([m.Causal(), m.Sliding(3, 3)]), m.Full()])
    q, k, v = torch.randn(3, 2, 2, 40, 32)
    blocks = create_block_mask(mask.mask_mod, 2, 2, 40, 40, device="cpu")
    with pytest.warns(UserWarning, match="without torch.compile"):
        found = flex_attention(q, k, v, block_mask=blocks)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask.dense(40, 40)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.build
def test_compiled_flex_attention():
    """Everything that has a table, and everything random."""
    masks = all_masks(130)
    parts = [masks[name] for name in ("bigbird", "bigbird near", "longformer, many", "dense")]
    mask = parts[0] & masks["documents"] | parts[1] & ~parts[2] | parts[3]
    q, k, v = torch.randn(3, 1, 1, 130, 32)
    blocks = create_block_mask(mask.mask_mod, None, None, 130, 130, device="cpu")
    torch.compiler.reset()
    found = torch.compile(flex_attention, dynamic=False)(q, k, v, block_mask=blocks)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask.dense(130, 130)
    )
    torch.testing.assert_close(found, expected)
