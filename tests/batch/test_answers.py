"""Engines that fail, and how many lines are in memory."""

import asyncio
from itertools import repeat

import pytest

from gossamer.batch.answers import EngineFailedError, answering
from gossamer.batch.lines import Line
from tests.batch.jobs import completion, setup, write
from tests.engine.serving import assert_empty, cpu_llm

POISON = 77  # the token of w71


def poisoned(llm, always=False):
    """From now on, steps raise that compute a sequence with this token, or all of them."""
    run = llm.engine.executor.run

    def poisonous(step):
        if always or any(POISON in seq.prompt_ids for seq in llm.engine.scheduler.running):
            raise RuntimeError("device lost")
        return run(step)

    llm.engine.executor.run = poisonous


def lines_of(tmp_path, lines):
    contents = write(tmp_path / "in.jsonl", lines).read_bytes().splitlines()
    return [Line(number, content) for number, content in enumerate(contents, start=1)]


def answer(llm, lines, in_flight=16):
    found = []

    async def all_of_them():
        async with answering({"dense": llm}, setup("").settings()) as answers:
            await answers.to(iter(lines), in_flight, found.append)
            assert_empty(llm)

    asyncio.run(all_of_them())
    return {result.number: result for result in found}, len(found)


@pytest.mark.parametrize("poison", [(), (5,), (0, 19, 20, 39)])
def test_only_who_makes_the_engine_fail_has_its_error(words, tmp_path, poison):
    lines = [completion(i, **({"prompt": "w1 w71"} if i in poison else {})) for i in range(40)]
    llm = cpu_llm(words)
    poisoned(llm)
    found, count = answer(llm, lines_of(tmp_path, lines))
    assert count == len(found) == 40
    assert {n - 1 for n, result in found.items() if result.engine_failed} == set(poison)
    assert sum(result.ok for result in found.values()) == 40 - len(poison)
    for n in poison:
        assert "the engine failed" in found[n + 1].body["error"]["message"]


def test_an_engine_that_fails_for_good_ends_the_job(words, tmp_path):
    llm = cpu_llm(words)
    poisoned(llm, always=True)
    with pytest.raises(EngineFailedError, match="the engine failed"):
        answer(llm, lines_of(tmp_path, [completion(i) for i in range(40)]))


def test_a_result_that_cannot_be_kept_ends_the_job(words, tmp_path):
    lines = lines_of(tmp_path, [completion(i) for i in range(40)])

    def full(_):
        raise OSError("no space left")

    async def all_of_them():
        async with answering({"dense": cpu_llm(words)}, setup("").settings()) as answers:
            await answers.to(iter(lines), 4, full)

    with pytest.raises(OSError, match="no space left"):
        asyncio.run(all_of_them())


def test_few_lines_are_in_memory(words, tmp_path):
    taken, given, most = 0, 0, 0
    lines = lines_of(tmp_path, [completion(i) for i in range(60)])

    def counted():
        nonlocal taken, most
        for line in lines:
            taken += 1
            most = max(most, taken - given)
            yield line

    def take(_):
        nonlocal given
        given += 1

    async def all_of_them():
        async with answering({"dense": cpu_llm(words)}, setup("").settings()) as answers:
            await answers.to(counted(), 7, take)

    asyncio.run(all_of_them())
    assert (taken, given, most) == (60, 60, 7)


@pytest.mark.parametrize("results", [1, 41])
def test_a_job_that_is_cancelled_ends_at_once(words, tmp_path, results):
    """As by Ctrl-C, whatever its workers are just doing: this input would never end."""
    endless = repeat(lines_of(tmp_path, [completion(2)])[0])
    found = []

    def take(result):
        found.append(result)
        if len(found) == results:
            job.cancel()

    async def cancelled():
        nonlocal job
        async with answering({"dense": cpu_llm(words)}, setup("").settings()) as answers:
            job = asyncio.create_task(answers.to(endless, 16, take))
            await asyncio.wait({job}, timeout=20)
            assert job.cancelled()

    job = None
    asyncio.run(cancelled())
