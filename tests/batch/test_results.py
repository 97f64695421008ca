"""The output goes on from any cut, and from nothing that is not its own."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.batch.job import Job
from gossamer.batch.results import Result, Results
from gossamer.server.errors import APIError

JOB = Job("1" * 64, "2" * 64)
LAST = 12


def result(number):
    if number % 3 == 0:
        return Result(number, None, error=APIError(400, "no", param="url", code="wrong"))
    status = 400 if number % 3 == 1 else 200
    return Result(number, f"\u00fc{number}", status, "name", {"text": "\u2028\n" * number})


def add(results, number):
    one = result(number)
    return results.add(number, one.line(JOB), ok=one.ok)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("results") / "out.jsonl"
    with Results(path, JOB, LAST) as results:
        for number in range(1, LAST + 1):
            assert add(results, number)
    return path.read_bytes()


def test_lines_are_openais(whole):
    first, _, third, *_ = map(json.loads, whole.splitlines())
    assert first["id"] == f"batch_req_{'1' * 12}_{'2' * 12}_1"
    assert first["custom_id"] == "\u00fc1"
    assert first["response"] == {
        "status_code": 400,
        "request_id": "name",
        "body": {"text": "\u2028\n"},
    }
    assert first["error"] is None
    assert third["custom_id"] is third["response"] is None
    assert third["error"] == {"code": "wrong", "message": "no", "param": "url", "line": 3}


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_a_cut_at_any_byte_loses_at_most_the_line_it_is_in(tmp_path_factory, whole, data):
    path = tmp_path_factory.getbasetemp() / "cut.jsonl"
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    known = whole[:cut].count(b"\n")
    with Results(path, JOB, LAST) as results:
        assert list(results.done) == [0] + [1] * known + [0] * (LAST - known)
        assert (results.count, results.answered) == (known, (known + 1) // 3)
        for number in data.draw(st.permutations(range(1, LAST + 1))):
            assert add(results, number) == (number > known)
        assert (results.count, results.answered) == (LAST, LAST // 3)
    assert sorted(path.read_bytes().splitlines()) == sorted(whole.splitlines())


def test_a_file_of_another_job_stays_as_it_is(tmp_path, whole):
    path = tmp_path / "out.jsonl"
    path.write_bytes(whole[:-5])
    for job, reason in (
        (Job("3" * 64, JOB.setup), "results of another input"),
        (Job(JOB.input, "3" * 64), "results of another model, cache, dtype, context"),
    ):
        with pytest.raises(ValueError, match=reason):
            Results(path, job, LAST)
        assert path.read_bytes() == whole[:-5]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{}\n", ":1 is not a result"),
        (b"\xff\n", ":1 is not a result"),
        (b"[1]\n", ":1 is not a result"),
        (b'{"id":7,"response":null}\n', ":1 is not a result"),
        (b'{"id":"batch_req_1","response":null}\n', ":1 is not a result"),
        (b"my notes", "ends in what is no result of this job"),
        (b'{"id":"batch_req_3', "ends in what is no result of this job"),
    ],
)
def test_a_file_of_someone_else_stays_as_it_is(tmp_path, content, reason):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=reason):
        Results(path, JOB, LAST)
    assert path.read_bytes() == content


def test_a_result_that_is_there_twice_or_of_no_line(tmp_path, whole):
    path = tmp_path / "out.jsonl"
    line = whole.splitlines(keepends=True)[4]
    for content, last in ((line + line, LAST), (line, 4)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="too many of line 5"):
            Results(path, JOB, last)


def test_lines_that_were_removed_are_computed_again(tmp_path, whole):
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[1::2]))
    with Results(path, JOB, LAST) as results:
        assert [n for n in range(1, LAST + 1) if not results.done[n]] == list(range(1, LAST, 2))


def test_one_process_at_a_time(tmp_path):
    path = tmp_path / "out.jsonl"
    with Results(path, JOB, LAST), pytest.raises(ValueError, match="written by another process"):
        Results(path, JOB, LAST)
    Results(path, JOB, LAST).__exit__()


def test_what_cannot_be_a_file_of_results(tmp_path):
    for path, kind in ((tmp_path, IsADirectoryError), (tmp_path / "no" / "x", FileNotFoundError)):
        with pytest.raises(kind):
            Results(path, JOB, LAST)
    with pytest.raises(ValueError, match="no regular file"):
        Results(type(tmp_path)(os.devnull), JOB, LAST)
