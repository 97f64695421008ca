"""Lines computed in this process."""

import asyncio

from gossamer.batch.answers import answering
from gossamer.batch.job import Setup
from gossamer.batch.lines import Survey
from gossamer.batch.results import Result, Results
from gossamer.engine import LLM
from gossamer.evaluation.progress import Bar
from gossamer.workloads.loading import loaded

SYNC = 1.0  # seconds between two


def compute(setup: Setup, survey: Survey, results: Results, bar: Bar) -> None:
    """See `run`. Raises EngineFailedError, and what loading a model raises."""
    with loaded(setup.model, kv=setup.kv, **setup.options) as llm:
        asyncio.run(_compute(setup, llm, survey, results, bar))


async def _compute(setup: Setup, llm: LLM, survey: Survey, results: Results, bar: Bar) -> None:
    def take(result: Result) -> None:
        results.add(result.number, result.line(results.job), ok=result.ok)
        bar.advance()

    async with answering({setup.kv: llm}, setup.settings()) as answers:
        syncing = asyncio.create_task(_sync(results))
        try:
            await answers.to(survey.lines(results.done), setup.in_flight, take)
        finally:
            syncing.cancel()


async def _sync(results: Results) -> None:
    while True:
        await asyncio.sleep(SYNC)
        results.sync()
