"""A setup is known by what results depend on, and by nothing else."""

import shutil

import torch

from tests.batch.jobs import OPTIONS, setup
from tests.cli.models import tiny_with_words


def test_weights_tell_setups_apart_and_places_do_not(words, tmp_path):
    digest = setup(words).digest()
    moved = shutil.copytree(words, tmp_path / "moved")
    assert setup(moved).digest() == digest
    torch.manual_seed(6)
    other = tiny_with_words(tmp_path / "other")
    assert setup(other).digest() != digest


def test_options_that_change_results(words, tmp_path):
    (tmp_path / "a").write_text("one text")
    (tmp_path / "b").write_text("another text")
    decisive = [
        {},
        {"dtype": "bfloat16"},
        {"max_model_len": 64},
        {"random_weights": True},
        {"calibration_text": tmp_path / "a"},
        {"calibration_text": tmp_path / "b"},
    ]
    digests = {setup(words, options=OPTIONS | options).digest() for options in decisive}
    assert len(digests) == len(decisive)
    same = {"device": "cuda", "kv_memory": "1GB", "max_num_seqs": 2, "enforce_eager": True}
    assert setup(words, options=OPTIONS | same, in_flight=3).digest() in digests
