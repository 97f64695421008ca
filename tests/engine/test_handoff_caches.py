"""Prompts that one engine computes and another continues give what one engine would give.

With real caches and files: logits must be the same to the last bit as those of one engine that
finds the prompt in its own prefix cache.
"""

import logging
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer.engine import LLM, EngineConfig, RequestOutput
from gossamer.integrations.calibrating import calibrate
from gossamer.kv.page_store import HEADER
from gossamer.masks import Strided
from tests.engine.serving import Logits, assert_empty, cpu_llm, greedy, record, tokens_of
from tests.engine.shelf import Shelf, Slow
from tests.models.tiny import VOCAB, tiny_directory, tiny_model

pytest.importorskip("transformers")

SPECS = (
    "dense",
    "dense:int8",
    "sparse:k=8,v=8",
    "sparse:k=8,v=8,window=0,sink=64",
    "sparse:k=8,v=6,window=64,sink=32",
    "coded:33%",
    "k=dense:int4@channel,v=sparse:8:int4,v_basis=pca",
)
PROMPT = 200  # tokens, of which 192 can come from elsewhere
NEW = 40
MODEL_SEED = 5


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(MODEL_SEED)
    model = tiny_directory("llama", path)
    ids = torch.randint(0, VOCAB, (1000,))
    calibrate(model, ids, context=500).save(path / "calibration.safetensors")
    return path


def engine_of(model: Path, spec: str, **options: Any) -> LLM:
    file = model / "calibration.safetensors"
    calibration = file if file.exists() else None
    return cpu_llm(model, kv=spec, calibration=calibration, **options)


def prompts(count: int = 3) -> list[list[int]]:
    """Always the same: with others, two logits might be equal to seven digits."""
    return torch.randint(0, VOCAB, (count, PROMPT), generator=torch.Generator()).tolist()


def generate(llm: LLM, asked: list[list[int]], tokens: int = NEW) -> list[RequestOutput]:
    """One by one, so that steps have the same shapes every time."""
    return [llm.generate([prompt], greedy(tokens))[0] for prompt in asked]


def by_one_engine(model: Path, spec: str, asked: list[list[int]]) -> tuple[Any, Logits]:
    """Outputs and logits where prompts are in the prefix cache."""
    llm = engine_of(model, spec)
    generate(llm, asked, 1)
    logits = record(llm)
    return generate(llm, asked), logits


def check_handoff(model: Path, folder: Path, spec: str) -> None:
    asked = prompts()
    theirs, expected = by_one_engine(model, spec, asked)
    with engine_of(model, spec, kv_transfer=folder, kv_role="prefill") as prefill:
        generate(prefill, asked, 1)
    published = prefill.engine.handoff.published_bytes
    with engine_of(model, spec, kv_transfer=folder, kv_role="decode") as decode:
        got = record(decode)
        mine = generate(decode, asked)
        assert [output.usage.cached_tokens for output in mine] == [PROMPT // 32 * 32] * len(asked)
        assert decode.engine.stats.prompt_tokens == PROMPT % 32 * len(asked)
        assert tokens_of(mine) == tokens_of(theirs)
        for a, b in zip(mine, theirs, strict=True):
            logits, wanted = got[a.request_id], expected[b.request_id]
            assert logits.keys() == wanted.keys()
            assert all(torch.equal(logits[at], wanted[at]) for at in wanted)
        assert_empty(decode)
    rule, size = decode.engine.manager.rule, decode.engine.built.size
    far = len(rule.seen_stored(PROMPT // 32))
    bytes_each = far * size.stored_bytes + (PROMPT // 32 - far) * size.dense_bytes
    assert published == decode.engine.handoff.fetched_bytes == len(asked) * bytes_each
    on_disk = [file.stat().st_size - HEADER.size for file in folder.glob("*/*.page")]
    assert sum(on_disk) == published


@pytest.mark.parametrize("spec", SPECS)
def test_prefill_here_and_decode_there(tiny, tmp_path, spec):
    check_handoff(tiny, tmp_path, spec)


@pytest.mark.parametrize(
    ("family", "settings"),
    [("mistral", {"sliding_window": 40}), ("qwen2-sliding", {"sliding_window": 50})],
)
@pytest.mark.parametrize("spec", ["dense", "sparse:k=8,v=8,window=0,sink=32"])
def test_models_with_sliding_windows(tmp_path, family, settings, spec):
    tiny_directory(family, tmp_path / "model", **settings)
    check_handoff(tmp_path / "model", tmp_path / "pages", spec)


def prefill_elsewhere(model: Path, folder: Path, asked: list[list[int]]) -> int:
    torch.set_num_threads(1)
    options = {"kv_transfer": folder, "kv_role": "prefill"}
    with engine_of(model, "coded:33%", **options) as llm:
        llm.generate(asked, greedy(1))
    return llm.engine.handoff.published_bytes


def test_two_processes(tiny, tmp_path):
    asked = prompts()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        published = pool.apply(prefill_elsewhere, (tiny, tmp_path, asked))
    expected, _ = by_one_engine(tiny, "coded:33%", asked)
    with engine_of(tiny, "coded:33%", kv_transfer=tmp_path, kv_role="decode") as llm:
        assert tokens_of(generate(llm, asked)) == tokens_of(expected)
        assert llm.engine.handoff.fetched_bytes == published > 0


def test_what_is_left_of_a_damaged_prompt_is_used(tiny, tmp_path):
    """Pages of two turns; the first block of the second is damaged, and the first turn is whole."""
    spec, (prompt,) = "sparse:k=8,v=8", prompts(1)
    expected, _ = by_one_engine(tiny, spec, [prompt])
    with engine_of(tiny, spec, kv_transfer=tmp_path, kv_role="prefill") as llm:
        llm.generate([prompt[:100]], greedy(1))
        before = {*tmp_path.glob("*/*.page")}
        llm.generate([prompt], greedy(1))
    new = {*tmp_path.glob("*/*.stored.page")} - before
    assert len(new) == 3
    for path in new:
        path.write_bytes(path.read_bytes()[:-1])
    with engine_of(tiny, spec, kv_transfer=tmp_path) as llm:
        outputs = llm.generate([prompt], greedy(NEW))
        assert tokens_of(outputs) == tokens_of(expected)
        assert outputs[0].usage.cached_tokens == 96
    assert len({*tmp_path.glob("*/*.page")}) == len(before) + len(new) + 1  # published again


def test_pages_of_other_weights_caches_and_types_are_not_found(tiny, tmp_path, caplog):
    asked, spec, folder = prompts(1), "sparse:k=8,v=8", tmp_path / "pages"
    torch.manual_seed(9)
    other = tmp_path / tiny.name  # the same config and name
    tiny_directory("llama", other)
    with engine_of(tiny, spec, kv_transfer=folder) as llm:
        llm.generate(asked, greedy(1))
    others: list[tuple[Path, str, dict[str, Any]]] = [
        (other, spec, {}),
        (tiny, spec + ",window=64", {}),
        (tiny, spec, {"dtype": "bfloat16"}),
        (tiny, "dense", {}),
    ]
    with caplog.at_level(logging.WARNING, "gossamer.engine"):
        for model, kv, options in others:
            with engine_of(model, kv, kv_transfer=folder, kv_role="decode", **options) as llm:
                assert llm.generate(asked, greedy(3))[0].usage.cached_tokens == 0
    assert caplog.text.count("has pages of other weights, caches or types only") == len(others)
    assert f"only: {tiny.name}, {spec}, float32" in caplog.text
    with engine_of(tiny, spec, kv_transfer=folder, kv_role="decode") as llm:
        assert llm.generate(asked, greedy(3))[0].usage.cached_tokens == 192


def test_another_calibration_is_another_cache(tiny, tmp_path):
    own, other, found = tiny / "calibration.safetensors", tmp_path / "other.safetensors", []
    torch.manual_seed(MODEL_SEED)
    model = tiny_model("llama")
    calibrate(model, torch.randint(0, VOCAB, (500,)), context=250).save(other)
    for file in (own, other, own):
        options = {"calibration": file, "kv_transfer": tmp_path / "pages"}
        with cpu_llm(tiny, kv="coded:33%", **options) as llm:
            found.append(generate(llm, prompts(1), 3)[0].usage.cached_tokens)
    assert found == [0, 0, 192]


def test_a_full_folder_forgets_prompts_and_answers_stay(tiny, tmp_path):
    asked = prompts(8)
    expected, _ = by_one_engine(tiny, "dense", asked)
    options = {"kv_transfer": tmp_path, "kv_transfer_size": "1MB"}
    with engine_of(tiny, "dense", **options) as llm:
        assert tokens_of(generate(llm, asked)) == tokens_of(expected)
    size = sum(file.stat().st_size for file in tmp_path.glob("*/*.page"))
    assert size <= 1_000_000 < llm.engine.handoff.published_bytes
    with engine_of(tiny, "dense", **options) as llm:
        assert tokens_of(generate(llm, asked[::-1])) == tokens_of(expected[::-1])
        assert 0 < llm.engine.stats.cached_tokens < len(asked) * 192


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_role": "prefill"}, "kv_role is 'prefill' without kv_transfer"),
        ({"kv_role": "producer"}, "kv_role is 'producer'; must be one of prefill, decode, both"),
        ({"kv_transfer_size": "much"}, "kv_transfer_size is 'much'; must be positive bytes"),
        ({"kv_transfer": "x", "prefix_caching": False}, "prefix_caching must be True"),
        ({"kv_transfer": "x", "tensor_parallel_size": 2}, "tensor_parallel_size is 2; must be 1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        EngineConfig(model="m", **options)


def test_a_store_of_ones_own(tiny):
    store, asked = Shelf(), prompts()
    with engine_of(tiny, "coded:33%", kv_transfer=store, kv_role="prefill") as llm:
        generate(llm, asked, 1)
    with engine_of(tiny, "coded:33%", kv_transfer=store, kv_role="decode") as llm:
        outputs = generate(llm, asked)
    expected, _ = by_one_engine(tiny, "coded:33%", asked)
    assert tokens_of(outputs) == tokens_of(expected)
    assert [output.usage.cached_tokens for output in outputs] == [192] * len(asked)
    with pytest.raises(TypeError, match="kv_transfer is int; must be a path or a PageStore"):
        EngineConfig(model="m", kv_transfer=5)


def test_a_stream_has_its_end_though_that_was_held_back(tiny):
    store, (prompt,) = Slow(), prompts(1)
    store.may_read.set()
    with engine_of(tiny, "dense", kv_transfer=store, kv_role="prefill") as llm:
        stream = llm.stream([prompt], greedy(2))
        while not llm.engine._held:  # the first token is not read yet
            llm.step()
        first = next(stream)
        store.may_write.set()
        assert [delta.finish_reason for delta in (first, *stream)] == [None, "length"]


def test_what_needs_the_model_to_be_refused(tiny, tmp_path):
    for options in ({"kv": "sparse:k=8,v=8,prefill=dense"}, {"prompt_mask": Strided(8)}):
        with pytest.raises(ValueError, match="kv_transfer needs a cache whose prompts share"):
            cpu_llm(tiny, kv_transfer=tmp_path / "pages", **options)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file cannot be a folder of pages: File exists"):
        cpu_llm(tiny, kv_transfer=tmp_path / "file")
