"""The model of these tests: made once."""

import pytest

from tests.cli.models import tiny_with_words


@pytest.fixture(scope="session")
def words(tmp_path_factory):
    """A tiny model with words, and room for whole documents."""
    path = tmp_path_factory.mktemp("evaluation") / "words"
    return tiny_with_words(path, template=None, max_position_embeddings=2048)
