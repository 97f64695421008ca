"""Text of events is the engine's own, however the tokens are cut into events."""

import random

import pytest

from gossamer.engine import SamplingParams, TokenLogprobs
from gossamer.engine.detokenizer import Detokenizer
from gossamer.server.events import Event
from gossamer.server.output_text import OutputText

LOGPROBS = tuple(TokenLogprobs(i, -1.0) for i in range(1000))


@pytest.fixture(scope="module")
def tokenizer(shared):
    return shared.llm.tokenizer


def engines_own(tokenizer, params, prompt, ids):
    """As gossamer.engine.request has it for an output that ends by its length."""
    detokenizer, text = Detokenizer(tokenizer, params, prompt), ""
    for count, token in enumerate(ids, start=1):
        text += detokenizer.append(token)
        if detokenizer.stopped is not None:
            return text, count, "stop"
    text += detokenizer.finish()
    return text, len(ids), "stop" if detokenizer.stopped is not None else "length"


@pytest.mark.parametrize("seed", range(20))
def test_any_cut_gives_the_same(tokenizer, seed):
    chance = random.Random(seed)
    ids = chance.choices(range(3, 97), k=80)
    whole = tokenizer.decode(ids)
    at = chance.randrange(len(whole) - 3)
    stop = whole[at : at + 3] if seed % 2 else ()
    params = SamplingParams(stop=stop, max_tokens=80, include_stop_str_in_output=seed % 3 == 0)
    expected = engines_own(tokenizer, params, [5, 6], ids)
    output, text, tokens, begin = OutputText(tokenizer, params, [5, 6]), "", 0, 0
    while not output.finished:
        end = min(80, begin + chance.randint(1, 7))
        reason = "length" if end == 80 else None
        piece = output.take(Event(0, ids[begin:end], LOGPROBS[begin:end], reason))
        assert len(piece.logprobs) == piece.tokens
        text, tokens, begin = text + piece.text, tokens + piece.tokens, end
    assert (text, tokens, piece.finish_reason) == expected


def test_a_token_that_ends_the_output_is_counted_and_not_shown(tokenizer):
    output = OutputText(tokenizer, SamplingParams(), [5])
    piece = output.take(Event(0, [10, 11, 12], finish_reason="stop"))
    assert (piece.text, piece.tokens, piece.finish_reason) == (
        tokenizer.decode([10, 11]),
        3,
        "stop",
    )
    assert output.finished


def test_events_of_one_output_become_one():
    first, second = Event(1, [1], LOGPROBS[:1]), Event(1, [2, 3], LOGPROBS[1:3], "length", 32)
    assert first.then(second) == Event(1, [1, 2, 3], LOGPROBS[:3], "length", 32)


def test_without_a_tokenizer():
    piece = OutputText(None, SamplingParams(), [5]).take(Event(0, [1, 2]))
    assert (piece.text, piece.tokens, piece.finish_reason) == ("", 2, None)
    with pytest.raises(ValueError, match="must be empty for a model without tokenizer"):
        OutputText(None, SamplingParams(stop="x"), [5])
