"""Without a GPU, Triton kernels run in Triton's interpreter; tests marked `gpu` are skipped."""

import logging
import os
import random
import tempfile

import pytest
import torch
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():  # before anything imports triton or gossamer
    os.environ["TRITON_INTERPRET"] = "1"
os.environ["GOSSAMER_CACHE"] = tempfile.mkdtemp(prefix="gossamer-tests-")  # not the user's own


# Machines that run tests are busy: how long a thing takes says nothing about the code.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture(autouse=True)
def seed():
    """Fresh random inputs in every run; GOSSAMER_SEED repeats those of a failure."""
    value = int(os.environ.get("GOSSAMER_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"GOSSAMER_SEED={value}")  # pytest shows this when the test fails
    torch.manual_seed(value)


@pytest.fixture
def poisoned():
    """Uninitialised memory from torch reads as NaN, so an element that nobody wrote shows up."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def said(caplog):
    """What the log says of caches, as if the process had just begun: lines of a level."""
    from gossamer.kv import announce  # noqa: PLC0415 - not before TRITON_INTERPRET is set

    announce._warn.cache_clear()
    caplog.set_level(logging.INFO, announce.log.name)

    def lines(level):
        found = (r for r in caplog.records if r.name == announce.log.name)
        return [r.getMessage() for r in found if r.levelno == level]

    yield lines
    announce._warn.cache_clear()
