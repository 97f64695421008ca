"""The decoder computes what transformers computes."""

import threading
from dataclasses import replace

import pytest
import torch

from gossamer.models import Shard, load_decoder, on_rotated, open_model
from gossamer.models.decoder import Decoder
from tests.models.tiny import (
    FAMILIES,
    assert_near,
    causal_attend,
    expected_logits,
    logits_of,
    random_ids,
    tiny_directory,
)

pytest.importorskip("transformers")


def load(path, dtype=torch.float32, **settings):
    return load_decoder(open_model(path), dtype=dtype, device="cpu", max_len=64, **settings)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family, tmp_path):
    model, ids = tiny_directory(family, tmp_path), random_ids()
    decoder = load(tmp_path)
    with torch.inference_mode():
        attend = on_rotated(causal_attend(decoder.config.sliding))
        hidden = decoder.forward(ids, torch.arange(len(ids)), attend)
        expected = model.model(ids[None], use_cache=False).last_hidden_state[0]
    assert_near(hidden, expected, 2e-5)
    assert_near(decoder.logits(hidden), expected_logits(model, ids), 2e-5)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_bfloat16_is_as_near_as_transformers(family, tmp_path):
    model, ids = tiny_directory(family, tmp_path), random_ids()
    exact = expected_logits(model, ids)
    theirs = (expected_logits(model.to(torch.bfloat16), ids).float() - exact).norm()
    ours = logits_of(load(tmp_path, torch.bfloat16), ids)
    assert ours.dtype is torch.bfloat16
    assert (ours.float() - exact).norm() < 1.3 * theirs


def test_attend_may_return_flat_rows_and_sees_strided_views(tmp_path):
    tiny_directory("llama", tmp_path)
    decoder, ids = load(tmp_path), random_ids()
    plain = causal_attend(decoder.config.sliding)

    def attend(layer, q, k, v):
        assert q.shape == (40, 4, 16)
        assert k.shape == v.shape == (40, 2, 16)
        assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
        return plain(layer, q, k, v).reshape(40, 64)

    with torch.inference_mode():
        flat = decoder.logits(decoder.forward(ids, torch.arange(40), on_rotated(attend)))
    assert torch.equal(flat, logits_of(decoder, ids))


def test_tokens_and_positions_in_any_order(tmp_path):
    """A token's row depends on its position, not on its place in the batch."""
    tiny_directory("llama", tmp_path)
    decoder, ids, order = load(tmp_path), random_ids(), torch.randperm(40)
    seen = []

    def watch(layer, q, k, v):
        seen.append((q, k))
        return torch.zeros_like(q)

    with torch.inference_mode():
        decoder.forward(ids, torch.arange(40), on_rotated(watch))
        decoder.forward(ids[order], order, on_rotated(watch))
    for (q, k), (q_turned, k_turned) in zip(seen[:3], seen[3:], strict=True):
        assert_near(q_turned, q[order], 1e-5)
        assert_near(k_turned, k[order], 1e-5)


def test_no_tokens(tmp_path):
    tiny_directory("qwen3", tmp_path)
    none = torch.empty(0, dtype=torch.int64)
    with torch.inference_mode():
        hidden = load(tmp_path).forward(none, none, on_rotated(lambda layer, q, k, v: q))
    assert hidden.shape == (0, 64)


class ThreadShard(Shard):
    """Ranks are threads; reduce adds what all of them have brought."""

    def __init__(self, rank, size, barrier, slots):
        super().__init__(rank, size)
        object.__setattr__(self, "meeting", (barrier, slots))

    def reduce(self, x):
        barrier, slots = self.meeting
        slots[self.rank] = x
        barrier.wait(30)
        total = torch.stack(slots).sum(0)
        barrier.wait(30)
        return x.copy_(total)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("family", ["llama-bias", "qwen2-sliding", "qwen3"])
def test_shards_are_the_whole(family, size, tmp_path):
    """With two KV heads: dealt out to two ranks, and each on two of four."""
    tiny_directory(family, tmp_path)
    ids = random_ids()
    barrier, slots, results = threading.Barrier(size), [None] * size, [None] * size

    def run(rank):
        shard = ThreadShard(rank, size, barrier, slots)
        results[rank] = logits_of(load(tmp_path, shard=shard), ids)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = logits_of(load(tmp_path), ids)
    assert_near(results[0], whole, 1e-5)
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_heads_of_shards(tmp_path):
    """KV heads are those that the query heads attend to."""

    def dealt(queries, keys, size):
        config = replace(
            open_model(tmp_path).config, query_heads=queries, kv_heads=keys, intermediate_size=96
        )
        shards = [Shard(rank, size) for rank in range(size)]
        for shard in shards:
            shard.check(config)
        return [(list(s.query_heads(config)), list(s.kv_heads(config))) for s in shards]

    tiny_directory("llama", tmp_path)
    assert dealt(6, 3, 3) == [([0, 1], [0]), ([2, 3], [1]), ([4, 5], [2])]
    assert dealt(8, 4, 2) == [([0, 1, 2, 3], [0, 1]), ([4, 5, 6, 7], [2, 3])]
    assert dealt(4, 2, 4) == [([0], [0]), ([1], [0]), ([2], [1]), ([3], [1])]
    assert dealt(6, 1, 3) == [([0, 1], [0]), ([2, 3], [0]), ([4, 5], [0])]
    for queries, keys, size in ((12, 3, 2), (12, 4, 6), (6, 2, 4), (4, 4, 8)):
        with pytest.raises(ValueError, match=f"tensor_parallel_size is {size}, .*must be one of 1"):
            dealt(queries, keys, size)


def test_shards_that_do_not_divide(tmp_path):
    tiny_directory("llama", tmp_path)
    refused = "is 3, and the model has 4 query heads, 2 KV heads .* of 96; must be one of 1, 2, 4$"
    with pytest.raises(ValueError, match=refused):
        load(tmp_path, shard=Shard(0, 3))
    with pytest.raises(ValueError, match="rank is 2; must be 0 to 1"):
        Shard(2, 2)
    with pytest.raises(ValueError, match="size is 0; must be at least 1"):
        Shard(0, 0)


def test_max_len(tmp_path):
    tiny_directory("llama", tmp_path)
    decoder = load(tmp_path)
    with pytest.raises(ValueError, match="max_len is 0; must be at least 1"):
        Decoder(decoder.config, decoder.weights, max_len=0)
