"""Quantized checkpoints, written once for all tests of a file."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.models.quantized import CHECKPOINTS, SIZES, write_checkpoint
from tests.models.tiny import tiny_directory


@pytest.fixture(scope="module")
def made(tmp_path_factory: Any) -> Callable[[str], tuple[Any, Any]]:
    """Folders of a checkpoint and its twin, by its name; each is written once."""
    root = tmp_path_factory.mktemp("schemes")
    tiny_directory("llama", root / "plain", **SIZES)
    folders: dict[str, tuple[Any, Any]] = {}

    def of(name: str) -> tuple[Any, Any]:
        if name not in folders:
            folders[name] = root / name, root / f"{name}-twin"
            write_checkpoint(CHECKPOINTS[name], root / "plain", *folders[name])
        return folders[name]

    return of


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Matrices are tiny: threads wait for each other longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
