"""Calibrations that are kept: found again, made once, never half."""

import logging
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest

from gossamer.kv import Calibration, KVShape
from gossamer.kv.calibration_files import kept_calibration, kept_file

SHAPE = KVShape(2, 4, 2, 16)
CALIBRATION = Calibration.blank(SHAPE, "toy")
FINGERPRINT = CALIBRATION.manifest.fingerprint


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "calibrations"


def test_made_once_and_found_again(folder):
    made = []

    def make(path):
        made.append(path)
        CALIBRATION.save(path)

    first, second = kept_calibration(FINGERPRINT, make), kept_calibration(FINGERPRINT, make)
    assert first == second == made[0]
    assert len(made) == 1
    assert first.parent == folder


def test_another_model_text_or_format_is_another_file(monkeypatch):
    sketches = tuple((1.0, *s[1:]) for s in FINGERPRINT.k_sketches)
    other = replace(FINGERPRINT, k_sketches=sketches)
    files = {kept_file(FINGERPRINT), kept_file(other), kept_file(FINGERPRINT, "0123abcd")}
    monkeypatch.setattr("gossamer.kv.calibration_files.FORMAT", 99)
    assert len(files | {kept_file(FINGERPRINT)}) == 4


@pytest.mark.parametrize("content", [b"", b"not a calibration at all", None])
def test_a_damaged_file_is_made_again(content, caplog):
    path = kept_calibration(FINGERPRINT, CALIBRATION.save)
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    with caplog.at_level(logging.WARNING):
        assert kept_calibration(FINGERPRINT, CALIBRATION.save) == path
    assert "is made again" in caplog.text
    Calibration.load(path, FINGERPRINT)


def test_what_is_interrupted_leaves_nothing(folder):
    def interrupted(path):
        path.with_name(f".{path.name}.123").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept_calibration(FINGERPRINT, interrupted)
    assert not kept_file(FINGERPRINT).exists()
    assert kept_calibration(FINGERPRINT, CALIBRATION.save).is_file()


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        path = kept_calibration(FINGERPRINT, CALIBRATION.save)
    assert "cannot be kept" in caplog.text
    Calibration.load(path, FINGERPRINT)


def _slowly(marks, path):
    with Path(marks).open("a") as file:
        file.write(f"{os.getpid()}\n")
    CALIBRATION.save(path)


def _want(marks):
    kept_calibration(FINGERPRINT, lambda path: _slowly(marks, path))


def test_two_processes_make_it_once(tmp_path):
    marks = tmp_path / "marks"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_want, args=(str(marks),)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(marks.read_text().splitlines()) == 1
