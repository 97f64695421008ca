"""Every figure of the committed records, made once."""

import pytest

from benchmarks.figures.catalog import FIGURES
from benchmarks.records import Benchmarks


@pytest.fixture(scope="session")
def found():
    return Benchmarks.of()


@pytest.fixture(scope="session")
def charts(found):
    return {figure.name: figure.make(found) for figure in FIGURES}
