"""An engine says at its start how its cache decodes."""

import logging

import pytest

from gossamer.engine import LLM
from gossamer.kv import announce


@pytest.mark.parametrize("measured", [True, False])
def test_an_engine_says_it(llm, said, measured, monkeypatch):
    """On a CPU: what `built` has is what the log says. Toys, like this one, are not measured."""
    if measured:
        monkeypatch.setattr(announce, "LEAST_HEAD_DIM", 8)
    options = {"kv": "dense:int8", "device": "cpu", "kv_memory": "16MiB"}
    with LLM(llm.engine.config.model, **options) as started:
        speed = started.engine.built.speed
    assert speed.measured == measured
    assert speed.kernel.startswith("cpu ")
    (line,) = said(logging.INFO)
    assert line.startswith("KV cache dense:int8: ")
    assert line.endswith(str(speed))
