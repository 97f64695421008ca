"""Batch jobs: a file of requests in, a file of results out, in OpenAI's format.

Needs the extra `serve`: pip install 'gossamer[serve]'; over Ray Data also `ray`.
"""

from gossamer.batch.answers import EngineFailedError
from gossamer.batch.job import Setup
from gossamer.batch.run import Summary, run

__all__ = ["EngineFailedError", "Setup", "Summary", "run"]
