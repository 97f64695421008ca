"""The model of these tests: made once."""

import pytest

from tests.cli.models import tiny_with_words


@pytest.fixture(scope="session")
def words(tmp_path_factory):
    """A tiny model with words and a chat template."""
    return tiny_with_words(tmp_path_factory.mktemp("cli") / "words")


@pytest.fixture(scope="session")
def plain_words(tmp_path_factory):
    """The same without a chat template."""
    return tiny_with_words(tmp_path_factory.mktemp("cli") / "plain", template=None)
