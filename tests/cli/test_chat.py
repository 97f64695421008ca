"""`gossamer chat`, line by line through stdin."""

import json
import re
import signal

import pytest
from typer.testing import CliRunner

from gossamer.cli import chat as command
from gossamer.cli.main import app

COMMON = ("--kv-memory", "8MB", "--max-tokens", "40", "--temperature", "0")


def chat(model, *lines, options=COMMON):
    typed = "".join(f"{line}\n" for line in lines)
    return CliRunner().invoke(app, ["chat", str(model), *map(str, options)], input=typed)


def facts(result):
    """The lines below answers."""
    return [line for line in result.stderr.splitlines() if line.startswith("prefill")]


def test_answers_on_stdout_facts_on_stderr(words):
    result = chat(words, "w1 w2", "", "w3")
    assert result.exit_code == 0, result.output
    assert len(result.stdout.strip().splitlines()) == 2
    assert len(facts(result)) == 2
    assert all(re.search(r"decode [0-9.,]+ tok/s, KV 0\.\d\d MB", line) for line in facts(result))
    assert "words, KV cache dense; /help for commands" in result.stderr


def test_the_next_turn_finds_the_history_in_the_cache(words):
    first, second = facts(chat(words, "w1 " * 40, "w3"))
    assert "cached" not in first
    assert re.search(r"(32|64) tokens cached", second)


def test_a_sparse_cache_says_what_it_saves(words):
    options = (*COMMON, "--kv", "sparse:k=16,v=16")
    assert "% saved" in facts(chat(words, "w1", "w2", "w3", options=options))[-1]


def test_commands(words, tmp_path):
    file = tmp_path / "saved.json"
    lines = ("w1", "/system w9 w8", f"/save {file}", "/reset", "w2", f"/save {file}2", "/exit", "w")
    result = chat(words, *lines)
    assert result.exit_code == 0, result.output
    system, question, answer = json.loads(file.read_text())
    assert system == {"role": "system", "content": "w9 w8"}
    assert question == {"role": "user", "content": "w1"}
    assert answer["role"] == "assistant"
    assert answer["content"].strip() == result.stdout.splitlines()[0].strip()
    after = json.loads((tmp_path / "saved.json2").read_text())
    assert [m["role"] for m in after] == ["system", "user", "assistant"]
    assert len(facts(result)) == 2, "something was answered after /exit"


def test_help_and_commands_that_are_none(words, tmp_path):
    result = chat(words, "/help", "/dance", "/save", f"/save {tmp_path}/nowhere/x", "/system")
    for words_of in ("/reset ", "/dance is not a command", "/save needs a file", "not saved: "):
        assert words_of in result.stderr
    assert "no system prompt" in result.stderr
    assert result.stdout == ""


def test_the_oldest_turns_go_when_the_history_is_too_long(words, tmp_path):
    file = tmp_path / "saved.json"
    options = (*COMMON, "--max-model-len", "128")
    turns = [" ".join([f"w{i}"] * 40) for i in range(4)]
    result = chat(words, *turns, f"/save {file}", options=options)
    assert result.exit_code == 0, result.output
    assert "too long: dropped the oldest 1 turns" in result.stderr
    kept = json.loads(file.read_text())
    assert kept[-2]["content"] == turns[-1]
    assert [m["role"] for m in kept] == ["user", "assistant"] * (len(kept) // 2)
    assert len(facts(result)) == 4


def test_a_message_that_cannot_fit_is_told_and_forgotten(words):
    result = chat(words, "w1 " * 600, "w2")
    assert re.search(r"error: the message has 602 tokens; must have 1 to \d+", result.stderr)
    assert len(facts(result)) == 1


def test_ctrl_c_stops_the_answer_only(words, monkeypatch):
    shown = []

    def interrupt(delta):
        shown.append(delta)
        if len(shown) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(command, "_show", interrupt)
    before = signal.getsignal(signal.SIGINT)
    result = chat(words, "w1", "w2")
    assert result.exit_code == 0, result.output
    first, second = facts(result)
    assert first.endswith(", stopped")
    assert not second.endswith(", stopped")
    assert len(shown) == 3 + 40
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("{plain}", (), "has no chat template; try `gossamer generate`"),
        ("{tmp}/nowhere", (), "there is no such model directory"),
        ("{words}", ("--kv", "spares"), "KV spec 'spares'"),
        ("{words}", ("--max-tokens", "0"), "max_tokens is 0; must be 1 to"),
    ],
)
def test_bad_options_are_one_line(words, plain_words, tmp_path, model, options, message):
    places = {"tmp": tmp_path, "words": words, "plain": plain_words}
    result = chat(model.format(**places), "w1", options=options)
    assert result.exit_code == 2
    (line,) = [x for x in result.stderr.splitlines() if x.startswith("error: ")]
    assert message in line
    assert "Traceback" not in result.output
