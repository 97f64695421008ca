"""Perplexity: windows, pieces, and the engine against transformers."""

import math
from random import Random

import pytest
import torch
import torch.nn.functional as F

from gossamer.engine import SamplingParams
from gossamer.evaluation.perplexity import PIECE_TOKENS, Perplexity
from gossamer.evaluation.statistics import pieces
from gossamer.evaluation.subject import EngineSubject
from tests.evaluation.fakes import FakeSubject, Words, run


def text_of(count):
    random = Random(count)
    return " ".join(f"w{random.randrange(90)}" for _ in range(count))


def test_whole_windows_of_the_first_tokens():
    task = Perplexity(text_of(1000), tokens=700, context=200)
    windows = task.windows(Words())
    assert [len(window) for window in windows] == [200, 200, 200]
    ids = Words()(task.text)["input_ids"]
    assert [token for window in windows for token in window] == ids[:600]
    assert task.count == 3
    assert len(Perplexity(text_of(500), tokens=700, context=200).windows(Words())) == 2


def test_a_score_is_a_sum_with_its_pieces():
    scores = run(Perplexity(text_of(400), tokens=400, context=200), FakeSubject())
    assert list(scores) == ["window-0", "window-1"]
    for score in scores.values():
        assert (score.value, score.weight) == (199, 199)
        assert score.meta["piece_tokens"] == PIECE_TOKENS == 64
    sums, weights = pieces(list(scores.values()))
    assert sums == weights == [64, 64, 64, 7] * 2


def test_done_windows_are_not_computed_again():
    task = Perplexity(text_of(600), tokens=600, context=200)
    assert list(run(task, FakeSubject(), ["window-1"])) == ["window-0", "window-2"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"context": 1}, "context is 1; must be at least 2"),
        ({"tokens": 100, "context": 200}, "tokens is 100; must be at least the context, 200"),
        ({"tokens": 900, "context": 500}, "my.txt has 300 tokens; must have at least the context"),
    ],
)
def test_wrong_sizes(options, words):
    with pytest.raises(ValueError, match=words):
        Perplexity(text_of(300), "my.txt", **options).windows(Words())


def test_files(tmp_path):
    (tmp_path / "a.txt").write_text("w1 w2 wörd", encoding="utf-8")
    task = Perplexity.of_file(tmp_path / "a.txt", tokens=9, context=3)
    assert (task.source, len(task.windows(Words())[0])) == ("a.txt", 3)
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ValueError, match=r"b\.txt: not UTF-8"):
        Perplexity.of_file(tmp_path / "b.txt")
    with pytest.raises(ValueError, match="no tokenizer"):
        task.windows(None)


def test_settings_name_the_text_by_its_content():
    first, other = Perplexity(text_of(10)).settings, Perplexity(text_of(11)).settings
    assert first["sha256"] != other["sha256"]
    assert text_of(10) not in str(first)


@torch.inference_mode()
def expected_nll(path, windows):
    """Sums by transformers."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
    found = []
    for window in torch.tensor(windows):
        logits = model(window[None], use_cache=False).logits[0, :-1].float()
        found.append(F.cross_entropy(logits, window[1:], reduction="sum").item())
    return found


def test_the_dense_engine_is_transformers(words):
    task = Perplexity(text_of(900), tokens=900, context=300)
    with EngineSubject(words, "dense", kv_memory="8MB") as subject:
        assert (subject.name, subject.share) == ("dense", 2.0)  # float32 on a CPU
        scores = run(task, subject)
        expected = expected_nll(words, task.windows(subject.tokenizer))
    for score, nll in zip(scores.values(), expected, strict=True):
        assert score.value == pytest.approx(nll, rel=1e-4)
        assert math.fsum(score.meta["pieces"]) == pytest.approx(score.value, rel=1e-5)


def test_a_sparse_cache_changes_tokens_beyond_its_window_only(words):
    task = Perplexity(text_of(300), tokens=300, context=300)
    found = []
    for kv in ("dense", "sparse:k=8,v=8"):
        with EngineSubject(words, kv, kv_memory="8MB") as subject:
            found.append(run(task, subject)["window-0"].meta["pieces"])
    dense, sparse = found
    assert sparse[0] == pytest.approx(dense[0], abs=1e-3)  # 64 tokens: all in the dense window
    assert all(abs(a - b) > 1e-3 for a, b in zip(dense[1:], sparse[1:], strict=True))


def test_generation_of_the_engine_is_greedy(words):
    with EngineSubject(words, "sparse:k=16,v=16,window=64", kv_memory="8MB") as subject:
        assert subject.name == "sparse:k=16,v=16,window=64"
        texts = subject.generate(["w1 w2", "w3"], [3, 5])
        greedy = [SamplingParams(temperature=0, max_tokens=n) for n in (3, 5)]
        expected = [o.outputs[0] for o in subject.llm.generate(["w1 w2", "w3"], greedy)]
        assert texts == [output.text for output in expected]
        assert [len(output.token_ids) for output in expected] == [3, 5]  # <unk> is no text
        assert subject.generate([], []) == subject.loglikelihood([]) == []
        with pytest.raises(ValueError, match="the prompt has 3000 tokens"):
            subject.generate([[1] * 3000], [1])
