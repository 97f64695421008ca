"""Any file is read line by line: numbers, blanks, lines that are too long, ids that come again."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.batch import lines as module
from gossamer.batch.lines import survey

LIMIT = 40
ids = st.sampled_from(["a", "b", "\u00fc", "\ud800", "x" * 9])
requests = ids.map(lambda id: json.dumps({"custom_id": id}).encode())
contents = st.one_of(
    requests, st.binary(max_size=60), st.sampled_from([b"", b" \t", b"null", b"{", b"x" * LIMIT])
)


def custom_id(content):
    """What the test thinks of a line."""
    try:
        found = json.loads(content.decode())
    except ValueError:
        return None
    return found.get("custom_id") if isinstance(found, dict) else None


@settings(deadline=None, max_examples=200)
@given(parts=st.lists(contents, max_size=20), end=st.booleans(), chunk=st.integers(1, 200))
def test_every_line_is_read_once(tmp_path_factory, parts, end, chunk):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(b"\n".join(parts) + (b"\n" if end else b""))
    with path.open("rb") as file:
        expected = {i: line for i, line in enumerate(file, start=1) if line.strip()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", chunk)
        found = survey(path, LIMIT)
    read = list(found.lines(bytearray(len(found.repeats))))
    assert found.count == len(expected)
    assert [line.number for line in read] == list(expected)
    seen = set()
    for line in read:
        whole = expected[line.number]
        assert line.content == (whole if len(whole) <= LIMIT else None)
        id = custom_id(whole) if len(whole) <= LIMIT else None
        assert line.repeats == (id is not None and id in seen)
        seen.add(id)


def test_lines_that_are_done_are_left_out(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"1\n2\n\n4\n5")
    found = survey(path, LIMIT)
    done = bytearray([0, 0, 1, 0, 0, 1])
    assert [line.number for line in found.lines(done)] == [1, 4]
    assert len(found.repeats) == 6


def test_digests_tell_inputs_apart(tmp_path):
    path = tmp_path / "in.jsonl"
    digests = set()
    for content in (b"", b"a\n", b"a", b"a" * LIMIT * 3, b"a" * LIMIT * 4):
        path.write_bytes(content)
        digests.add(survey(path, LIMIT).digest)
    assert len(digests) == 5
