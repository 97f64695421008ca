"""A request that is computed again goes on where it was."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.cluster.replay import DivergedError, Replay
from gossamer.server.events import Event, Failure


def events_of(tokens, cuts, output=0):
    """An output in pieces, the last of which ends it."""
    bounds = [0, *sorted(cut for cut in cuts if 0 < cut < len(tokens)), len(tokens)]
    pieces = [tokens[a:b] for a, b in pairwise(bounds)]
    return [
        Event(output, piece, tuple(piece), "length" if i == len(pieces) - 1 else None)
        for i, piece in enumerate(pieces)
    ]


CUTS = st.lists(st.integers(0, 30), max_size=6)


@given(st.lists(st.integers(), min_size=1, max_size=30), CUTS, CUTS, CUTS, st.integers(0, 7))
def test_nothing_is_missing_and_nothing_comes_twice(tokens, first, second, third, deaths):
    replay, seen = Replay(2), []
    for attempt, cuts in enumerate((first, second, third)):
        events = [*events_of(tokens, cuts), *events_of([7], [], output=1)]
        lives = len(events) if attempt == 2 else deaths % (len(events) + 1)
        seen += replay.fresh(events[:lives])
        replay.again()
    mine = [event for event in seen if event.output == 0]
    assert [token for event in mine for token in event.token_ids] == tokens
    assert [token for event in mine for token in event.logprobs] == tokens
    assert [event.finish_reason for event in mine if event.finish_reason] == ["length"]
    assert sum(event.output == 1 for event in seen) == 1


def test_other_tokens_are_an_error():
    replay = Replay(1)
    replay.fresh([Event(0, [1, 2, 3])])
    replay.again()
    assert replay.fresh([Event(0, [1, 2])]) == []
    with pytest.raises(DivergedError):
        replay.fresh([Event(0, [4, 5])])


def test_a_failure_is_of_all_outputs():
    replay = Replay(2)
    replay.fresh(events_of([1, 2], []))
    failed = Event.failed(Failure("no memory"))
    assert failed.output == 0  # which has ended
    assert not replay.over
    assert replay.fresh([failed]) == [failed]
    assert replay.over


def test_what_is_aborted_is_over_and_says_nothing():
    replay = Replay(2)
    replay.abort(1)
    replay.again()
    assert replay.fresh([*events_of([1], []), Event(1, [5])]) == events_of([1], [])
    assert (replay.over, replay.aborted) == (True, {1})
