"""A decode step in which one op rotates, turns and writes gives the same as the ops one by one."""

import pytest

from gossamer.kv import PagedCache
from gossamer.kv.cache_step import CacheStep
from tests.engine.serving import cpu_llm, greedy, tokens_of
from tests.engine.test_sparse_is_the_same_everywhere import NEW, make_tiny
from tests.models.tiny import random_ids, tiny_directory

pytest.importorskip("transformers")
SPECS = (
    "sparse:k=8,v=8,basis=pca,k_policy=weighted",
    "coded:33%",
    "k=dense:int4@channel,v=dense:int8",
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture
def fused(monkeypatch):
    """The layers of its calls."""
    calls, append = [], PagedCache.append

    def counted(self, layer, *args):
        calls.append(layer)
        return append(self, layer, *args)

    monkeypatch.setattr(PagedCache, "append", counted)
    return calls


def one_by_one(monkeypatch):
    """As in steps with prompts."""
    monkeypatch.setattr(CacheStep, "sole_decode", None)


@pytest.mark.parametrize("spec", SPECS)
def test_compressed_caches(tiny, spec, monkeypatch, fused):
    with monkeypatch.context() as patch:
        one_by_one(patch)
        tiny.served_alone(spec)
        assert not fused
    llm, logits = tiny.llm(spec)
    tiny.check(spec, llm.generate(tiny.prompts, greedy(NEW)), logits)
    assert set(fused) == {0, 1, 2}


@pytest.mark.parametrize("family", ["llama", "qwen3"])  # with norms of queries and keys
def test_a_plain_cache(family, tmp_path, monkeypatch, fused):
    tiny_directory(family, tmp_path)
    prompts = [random_ids(length).tolist() for length in (1, 31, 70)]
    mine = tokens_of(cpu_llm(tmp_path).generate(prompts, greedy(40)))
    assert fused
    one_by_one(monkeypatch)
    assert mine == tokens_of(cpu_llm(tmp_path).generate(prompts, greedy(40)))
