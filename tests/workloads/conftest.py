"""The model of these tests is that of the commands."""

from tests.cli.conftest import words

__all__ = ["words"]
