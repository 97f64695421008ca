"""Rows of a SparseCache: taken back, reordered, saved; and the memory that they take."""

import copy
import json

import pytest
import torch

from gossamer.integrations.calibrating import calibrate
from gossamer.integrations.transformers import SparseCache, use_gossamer
from gossamer.integrations.transformers.pages import PageTable
from gossamer.kv import KVConfig, KVShape
from gossamer.kv.extras import import_extra
from tests.integrations.generating import by_transformers, endless_tiny, generated
from tests.models.tiny import random_ids

transformers = pytest.importorskip("transformers")

SPARSE = "sparse:k=8,v=8"


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(2)
    return endless_tiny("llama", max_position_embeddings=8192)


@pytest.fixture
def sparse(model):
    """The model inside use_gossamer."""
    with use_gossamer(model, SPARSE):
        yield model


@torch.inference_mode()
def logits_after(model, cache, ids):
    """[rows, vocab] after tokens [rows, T] that follow what is in the cache."""
    return model(ids, past_key_values=cache).logits[:, -1]


def some_ids(rows, tokens):
    return torch.stack([random_ids(tokens) for _ in range(rows)])


# ---- bytes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec", ["dense", SPARSE, "sparse:k=4,v=4,window=64,sink=32", "dense:int4"]
)
def test_bytes_at_4k(model, spec):
    """Within 5% of the layout's formula: blocks as stored, and the window dense."""
    cache, tokens, rows = SparseCache(model.config, spec), 4096, 2
    with use_gossamer(model, spec):
        logits_after(model, cache, some_ids(rows, tokens - 40))
        for _ in range(40):
            logits_after(model, cache, some_ids(rows, 1))
    config = KVConfig.parse(spec, dense="fp32", sparse="fp16")
    shape = KVShape(3, 4, 2, 16)
    dense_blocks = 1 + (config.window + config.sink) // 32
    block = 2 * 32 * 16 * 4 * shape.kv_heads * shape.layers
    formula = (tokens // 32 - dense_blocks) * config.block_bytes(shape) + dense_blocks * block
    assert cache.expected_nbytes() == rows * formula
    pools = [pool for layer in cache.layers for pool in layer.pools.values()]
    assert cache.nbytes == sum(pool.untyped_storage().nbytes() for pool in pools)
    assert 1 <= cache.nbytes / (rows * formula) < 1.05
    dynamic = 2 * rows * tokens * 16 * 4 * shape.kv_heads * shape.layers
    assert cache.nbytes < dynamic * (1.05 if spec == "dense" else 0.5)


def test_page_table():
    table = PageTable(2)
    table.rows[0] += table.take(3)
    table.rows[1] += table.take(2)
    assert (table.rows, table.size) == ([[0, 1, 2], [3, 4]], 5)
    table.select([0, 0, 0])  # pages 3 and 4 are nobody's now
    table.rows[1] += table.take(1)
    assert table.rows == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2]]
    assert table.take(4) == [4, 5, 6, 7]  # one that was left, and room for three
    assert table.take(1) == [4]  # what nobody named is found again
    assert table.compact() == [0, 1, 2, 3]
    assert table.size == 4
    big = PageTable(1)
    big.take(1000)
    assert 1000 <= big.size <= 1000 * 33 / 32


# ---- taking back ---------------------------------------------------------------------------


@pytest.mark.parametrize(("spec", "rollback"), [("dense", 0), (SPARSE, 40), (SPARSE, 0)])
def test_crop(model, spec, rollback):
    """As if the tokens had never been there, across blocks, again and again."""
    first, other, last = some_ids(2, 120), some_ids(2, 40), some_ids(2, 30)
    if not rollback and spec != "dense":
        first, other = some_ids(2, 97), some_ids(2, 30)  # stays in its block
    with use_gossamer(model, spec):
        clean = SparseCache(model.config, spec)
        logits_after(model, clean, first)
        expected = [logits_after(model, clean, last), logits_after(model, clean, last[:, :1])]
        cache = SparseCache(model.config, spec, rollback=rollback)
        logits_after(model, cache, first)
        for size in (other.shape[1], 1, 17):
            logits_after(model, cache, other[:, :size])
            cache.crop(-size)
            assert cache.lengths == [first.shape[1]] * 2
        cache.crop(first.shape[1] + 5)  # as older versions call it: at most so many stay
        cache.crop(0)
        assert cache.get_seq_length() == first.shape[1]
        got = [logits_after(model, cache, last), logits_after(model, cache, last[:, :1])]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_crop_that_is_not_possible(sparse):
    cache = SparseCache(sparse.config, SPARSE)
    cache.crop(-3)  # nothing in it
    logits_after(sparse, cache, some_ids(1, 130))
    with pytest.raises(ValueError, match=r"at most 1 now: make .* SparseCache\(..., rollback=3\)"):
        cache.crop(-3)
    cache.crop(-1)
    assert cache.lengths == [129]
    cache.crop(-129)
    assert (cache.lengths, cache.nbytes, cache.is_initialized) == ([], 0, False)


def test_crop_into_padding(sparse):
    cache = SparseCache(sparse.config, SPARSE, rollback=64)
    generated(sparse, [random_ids(50).tolist(), random_ids(9).tolist()], 4, past_key_values=cache)
    with pytest.raises(ValueError, match="20 columns are to go, and the last 12 are without"):
        cache.crop(-20)


def test_prompt_lookup_takes_tokens_back(model):
    """Assisted generation: candidates that are wrong are cropped; tokens are the usual ones."""
    prompt = [(random_ids(20).tolist() * 4)]
    expected = by_transformers(model, prompt, 30, prompt_lookup_num_tokens=4)
    with use_gossamer(model):
        assert generated(model, prompt, 30, prompt_lookup_num_tokens=4) == expected
    with use_gossamer(model, SPARSE, rollback=8):
        usual = generated(model, prompt, 30)
        assert generated(model, prompt, 30, prompt_lookup_num_tokens=4) == usual


# ---- rows ----------------------------------------------------------------------------------


def test_select_repeat_reorder(sparse):
    ids, more = some_ids(3, 130), some_ids(3, 40)
    alone = SparseCache(sparse.config, SPARSE)
    logits_after(sparse, alone, ids)
    expected = logits_after(sparse, alone, more)
    cache = SparseCache(sparse.config, SPARSE)
    logits_after(sparse, cache, ids)
    pages = cache.layers[0].pools["k"].shape
    cache.batch_repeat_interleave(2)  # 0 0 1 1 2 2
    cache.reorder_cache(torch.tensor([4, 0, 0, 2, 5, 1]))  # 2 0 0 1 2 0
    cache.batch_select_indices(torch.tensor([1, 3, 4]))  # 0 1 2
    assert cache.batch_size == 3
    assert cache.layers[0].pools["k"].shape == pages  # stored pages were shared
    torch.testing.assert_close(logits_after(sparse, cache, more), expected)
    cache.batch_select_indices(torch.tensor([False, True, False]))
    assert cache.lengths == [170]


def test_beams_share_pages(sparse):
    cache = SparseCache(sparse.config, SPARSE)
    generated(sparse, [random_ids(200).tolist()], 40, num_beams=4, past_key_values=cache)
    one = SparseCache(sparse.config, SPARSE)
    generated(sparse, [random_ids(200).tolist()], 40, past_key_values=one)
    assert cache.lengths == [239] * 4
    assert len(cache.layers[0].pools["k"]) < 4 * len(one.layers[0].pools["k"])


def test_copies_go_their_own_way(sparse):
    """A prompt that several continuations share, as transformers' docs do it."""
    prompt, ends = random_ids(120).tolist(), [random_ids(n).tolist() for n in (3, 40)]
    shared = SparseCache(sparse.config, SPARSE)
    logits_after(sparse, shared, torch.tensor([prompt]))
    for end in ends:
        got = generated(sparse, [prompt + end], 8, past_key_values=copy.deepcopy(shared))
        assert got == generated(sparse, [prompt + end], 8)
    assert shared.lengths == [120]


def test_reset(sparse):
    cache = SparseCache(sparse.config, SPARSE)
    first = generated(sparse, [random_ids(70).tolist()] * 2, 4, past_key_values=cache)
    cache.reset()
    assert (cache.get_seq_length(), cache.nbytes, cache.lengths) == (0, 0, [])
    prompt = [random_ids(33).tolist()]
    assert len(first) == 2
    assert generated(sparse, prompt, 4, past_key_values=cache) == generated(sparse, prompt, 4)


# ---- files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["dense", "sparse:k=8,v=8,sink=32", SPARSE])
def test_save_and_load(model, spec, tmp_path):
    prompts = [random_ids(150).tolist(), random_ids(90).tolist()]
    with use_gossamer(model, spec):
        cache = SparseCache(model.config, spec, rollback=8)
        answers = generated(model, prompts, 10, past_key_values=cache)
        texts = [
            prompt + answer + random_ids(7).tolist()
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        cache.save(tmp_path / "cache.safetensors")
        back = SparseCache.load(tmp_path / "cache.safetensors", model.config)
        assert (back.lengths, back.get_seq_length()) == (cache.lengths, cache.get_seq_length())
        assert back.nbytes <= cache.nbytes
        expected = generated(model, texts, 40, past_key_values=cache)
        assert generated(model, texts, 40, past_key_values=back) == expected
        back.save(tmp_path / "again.safetensors")  # and a cache that came from a file


def test_a_coded_cache_in_a_file(model, tmp_path):
    """The file names bits, not the percentage of which they were made; old blocks are refused."""
    calibration = calibrate(model, random_ids(400), context=100)
    file, ids = tmp_path / "cache.safetensors", some_ids(1, 120)
    with use_gossamer(model, "coded:33%", calibration=calibration):
        cache = SparseCache(model.config, "coded:33%", calibration=calibration)
        logits_after(model, cache, ids)
        cache.save(file)
        back = SparseCache.load(file, model.config, calibration=calibration)
        assert str(back.kv) == str(KVConfig.parse("coded:33%").resolve(calibration))
        more = some_ids(1, 3)
        expected = logits_after(model, cache, more)
        assert torch.equal(logits_after(model, back, more), expected)
    tensors = import_extra("safetensors.torch").load_file(file)
    with import_extra("safetensors").safe_open(file, "pt") as opened:
        about = json.loads(opened.metadata()["gossamer_cache"])
    metadata = {"gossamer_cache": json.dumps({**about, "format": 2})}
    import_extra("safetensors.torch").save_file(tensors, file, metadata=metadata)
    with pytest.raises(ValueError, match="format is 2; this version reads 3"):
        SparseCache.load(file, model.config, calibration=calibration)


def test_load_refuses(sparse, tmp_path):
    cache, file = SparseCache(sparse.config, SPARSE), tmp_path / "cache.safetensors"
    with pytest.raises(ValueError, match="the cache is empty"):
        cache.save(file)
    ids = some_ids(1, 100)
    logits_after(sparse, cache, ids)
    cache.save(file)
    other = endless_tiny("llama")
    with use_gossamer(other, SPARSE), pytest.raises(ValueError, match="belongs to another model"):
        logits_after(other, SparseCache.load(file, other.config), ids[:, :1])
    deeper = endless_tiny("llama", num_hidden_layers=4)
    with pytest.raises(ValueError, match=r"made with 3 layers, .* the config has 4 layers"):
        SparseCache.load(file, deeper.config)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no")
    with pytest.raises(ValueError, match=r"broken.safetensors: not a safetensors file"):
        SparseCache.load(broken, sparse.config)
