"""How calls are written and read, whole and a few characters at a time."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.server.message_stream import MessageStream, Reading
from gossamer.server.tool_parsers import FORMATS, format_of
from tests.server.templates import TEMPLATES

NAMES = ("add", "get_weather")
WEATHER = '{"name": "get_weather", "%s": {"city": "Paris, \\"Île\\"", "days": [1, {"x": "}"}]}}'
ADD = '{"name": "add", "%s": {}}'
ARGUMENTS = ['{"city": "Paris, \\"Île\\"", "days": [1, {"x": "}"}]}', "{}"]
TWO = {  # text that has both
    "hermes": (
        f"<tool_call>\n{WEATHER % 'arguments'}\n</tool_call>\n"
        f"<tool_call>\n{ADD % 'arguments'}\n</tool_call>"
    ),
    "smollm2": f"<tool_call>[{WEATHER % 'arguments'}, {ADD % 'arguments'}]</tool_call>",
    "mistral": f"[TOOL_CALLS][{WEATHER % 'arguments'}, {ADD % 'arguments'}]",
    "llama3": f"{WEATHER % 'parameters'}; {ADD % 'parameters'}",
}


def read(reading, text, size=None):
    """The parts, as content, reasoning and calls, fed so many characters at a time."""
    stream, size = MessageStream(reading), size or max(1, len(text))
    parts = []
    for start in range(0, len(text), size):
        parts += stream.feed(text[start : start + size])
    parts += stream.feed("", last=True)
    found = {"content": "", "reasoning": ""}
    calls = []
    for part in parts:
        assert part.text or part.kind == "arguments"
        if part.kind == "call":
            assert part.call == len(calls)
            calls.append((part.text, ""))
        elif part.kind == "arguments":
            assert part.call == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + part.text)
        else:
            found[part.kind] += part.text
    assert stream.calls == len(calls)
    return found["content"], found["reasoning"], calls


def reading(name, **more):
    return Reading(tools=FORMATS[name], names=NAMES, **more)


@pytest.mark.parametrize("size", [None, 1, 3, 7])
@pytest.mark.parametrize("name", FORMATS)
def test_calls(name, size):
    content, _, calls = read(reading(name), TWO[name], size)
    assert content == ""
    assert calls == list(zip(("get_weather", "add"), ARGUMENTS, strict=True))
    for _, arguments in calls:
        json.loads(arguments)
    content, _, calls = read(reading(name, several=False), TWO[name], size)
    assert (content, [call for call, _ in calls]) == ("", ["get_weather"])


@pytest.mark.parametrize("size", [None, 1, 3])
@pytest.mark.parametrize("name", FORMATS)
def test_content_beside_calls(name, size):
    form = FORMATS[name]
    for text in ("Hello <b> [x] { }", "", "  two  blanks  ", form.begin[:4], "{", '{"a": 1}'):
        if form.begin or not text.startswith(("{", " ")):
            assert read(reading(name), text, size) == (text, "", [])
    if form.begin:
        content, _, calls = read(reading(name), f"Let me see. {TWO[name]}", size)
        assert (content, len(calls)) == ("Let me see. ", 2)
        cut = f"{form.begin}{form.opening}{{"
        assert read(reading(name), cut, size)[2] == []
    if form.end:
        content, _, calls = read(reading(name), f"{TWO[name]}\nDone.  All of it. ", size)
        assert (content, len(calls)) == ("Done.  All of it. ", 2)


@pytest.mark.parametrize("size", [None, 1, 4])
def test_what_is_no_call_stays_content(size):
    for name, text in (
        ("llama3", '{"name": "unknown", "parameters": {}}'),
        ("llama3", '{"city": {"name": "add"}, "list": [1, 2]} and so on'),
        ("llama3", '[{"city": 1}, {"city": 2}]'),
        ("llama3", "[{"),
        ("hermes", "<tool_call>no call</tool_call>"),
        ("hermes", '<tool_call>{"name": 5}</tool_call>'),
        ("mistral", "[TOOL_CALLS] nothing"),
        ("smollm2", '<tool_call>[{"name" "add"}]</tool_call>'),
    ):
        content, _, calls = read(reading(name), text, size)
        assert calls == []
        assert content == text


def test_arguments_before_the_name_and_cut_off():
    text = '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>'
    assert read(reading("hermes"), text, 1) == ("", "", [("add", '{"a": 1}')])
    cut = '<tool_call>\n{"name": "add", "arguments": {"a": [1, "x'
    assert read(reading("hermes"), cut, 5) == ("", "", [("add", '{"a": [1, "x')])
    no_arguments = '<tool_call>{"name": "add"}</tool_call>'
    assert read(reading("hermes"), no_arguments, 5) == ("", "", [("add", "")])


@pytest.mark.parametrize("size", [None, 1, 3])
def test_reasoning(size):
    text = "<think>\nIs 1 < 2?\nYes.\n</think>\n\nIt is."
    for opened, written in ((False, text), (False, "\n" + text), (True, text[len("<think>") :])):
        how = Reading(reasoning=True, opened=opened)
        assert read(how, written, size) == ("It is.", "Is 1 < 2?\nYes.\n", [])
    assert read(Reading(reasoning=True), "It is <think>.", size) == ("It is <think>.", "", [])
    assert read(Reading(reasoning=True), "<think>cut </thi", size) == ("", "cut </thi", [])
    assert read(Reading(reasoning=True), "<thin", size) == ("<thin", "", [])
    assert read(Reading(), text, size) == (text, "", [])
    both = read(reading("hermes", reasoning=True), f"<think>x</think>\n\n{TWO['hermes']}", size)
    assert (both[:2], len(both[2])) == (("", "x"), 2)


PIECES = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<think>", "</think>", "\n", " ", "x"]
PIECES += [*'{}[]",:;\\', '{"name": "add"', '"arguments": ', '"parameters": {', "<", "[TOOL"]


@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(st.sampled_from(PIECES), max_size=12),
    st.integers(1, 9),
    st.booleans(),
)
def test_the_parts_do_not_depend_on_how_text_comes(name, pieces, size, thinks):
    text, how = "".join(pieces), reading(name, reasoning=thinks)
    whole = read(how, text)
    assert read(how, text, size) == whole
    if not whole[2] and not whole[1] and not thinks:  # nothing is lost
        kept = "".join(whole[0].split())
        assert kept == "".join(text.split())


def test_formats_are_known_by_their_templates():
    for name, template in TEMPLATES.items():
        assert format_of(template).name == name
    assert format_of(None).name == "smollm2"
    assert format_of({"default": "{{ x }}", "tool_use": TEMPLATES["hermes"]}).name == "hermes"
    assert format_of(TEMPLATES["hermes"], "mistral").name == "mistral"
    with pytest.raises(ValueError, match="name one by --tool-parser: hermes, llama3, mistral, sm"):
        format_of("{{ tools }}")
    assert len(FORMATS["mistral"].new_id()) == 9
    assert FORMATS["hermes"].new_id().startswith("call_")
