"""LongBench end to end, on small files of its format and a subject that knows the answers."""

import pytest

from gossamer.evaluation.experiment import Experiment, evaluate
from gossamer.evaluation.longbench import SETTINGS, LongBench, longbench_tasks, problems
from gossamer.evaluation.longbench.task import make_prompt, without_middle
from gossamer.evaluation.store import Store
from tests.evaluation.fakes import run
from tests.evaluation.longbench import ANSWERS, Chats, Letters, row, subject_of, write


@pytest.fixture
def folder(tmp_path):
    for task in SETTINGS:
        write(tmp_path, task, [row(task, i) for i in range(3)])
    return tmp_path


@pytest.mark.parametrize("name", SETTINGS)
def test_right_and_wrong_answers(name, folder):
    task = LongBench(name, 4096, folder)
    right = ANSWERS.get(name, "the red house")
    subject = subject_of(lambda prompt: right if "Context 1." in prompt else "Zzz")
    scores = run(task, subject)
    assert {key: score.value for key, score in scores.items()} == {
        "id-0": 0, "id-1": 1, "id-2": 0,
    }  # fmt: skip
    assert scores["id-1"].meta == {"length": 2, "text": right}
    assert (task.name, task.kind, task.count) == (f"longbench-{name}", "accuracy", 3)


def test_what_is_done_is_not_asked_again(folder):
    write(folder, "qasper", [row("qasper", i) for i in range(20)])
    task, subject = LongBench("qasper", 4096, folder, examples=19), subject_of(lambda prompt: "")
    assert len(run(task, subject, done={"id-0", "id-5"})) == 17
    assert [len(batch) for batch in subject.batches] == [8, 8, 1]
    assert all("Context 5." not in prompt for batch in subject.batches for prompt in batch)


def test_answers_have_the_benchmarks_length(folder):
    subject, asked = subject_of(lambda prompt: ""), []
    generate = subject.generate

    def watch(prompts, max_tokens):
        asked.extend(max_tokens)
        return generate(prompts, max_tokens)

    subject.generate = watch
    for task in longbench_tasks(4096, folder, ["samsum", "longbench-hotpotqa"], examples=1):
        run(task, subject)
    assert asked == [128, 32]


def test_middle_truncation_by_hand():
    assert without_middle(range(10), 10) == list(range(10))
    assert without_middle(range(10), 6) == [0, 1, 2, 7, 8, 9]
    assert without_middle(range(10), 5) == [0, 1, 8, 9]  # two halves of two
    assert without_middle(range(10), 1) == []


def test_long_prompts_lose_their_middle(folder):
    """The prompt keeps both of its ends, where the instructions are; context - max_tokens long."""
    write(folder, "hotpotqa", [row("hotpotqa", context="x" * 5000)])
    task = LongBench("hotpotqa", 1032, folder)
    example = task.example(task.rows[0], Letters())
    whole = make_prompt("hotpotqa", task.rows[0], Letters(), 10**6, chat=False)
    assert isinstance(whole, str)
    assert len(example.prompt) == 1000
    text = Letters().decode(example.prompt)
    assert text == whole[:500] + whole[-500:]
    assert text.endswith("Question: Input 0?\nAnswer:")


def test_chats_fit_too(folder):
    write(folder, "qasper", [row("qasper", context="x" * 5000)])
    task = LongBench("qasper", 1128, folder)
    [message] = task.example(task.rows[0], Chats()).prompt
    assert message["role"] == "user"
    assert len(message["content"]) == 998  # and two tokens of the chat
    assert message["content"].endswith("Answer:")
    write(folder, "trec", [row("trec")])
    few_shot = LongBench("trec", 1128, folder)
    assert isinstance(few_shot.example(few_shot.rows[0], Chats()).prompt, str)
    plain = LongBench("hotpotqa", 1128, folder, chat=False)
    assert isinstance(plain.example(plain.rows[0], Chats()).prompt, str)
    short = LongBench("hotpotqa", 1128, folder)
    assert short.example(short.rows[0], Chats()).prompt[0]["content"].endswith("Answer:")
    with pytest.raises(ValueError, match="room for 3 tokens; must be more for a chat"):
        make_prompt("qasper", task.rows[0], Chats(), 3, chat=True)
    with pytest.raises(ValueError, match="the model has no tokenizer; LongBench needs one"):
        make_prompt("qasper", task.rows[0], None, 100, chat=False)


def test_a_bad_task_does_not_stop_the_others(folder):
    (folder / "qasper.jsonl").unlink()
    (folder / "trec.jsonl").write_text("")
    tasks = longbench_tasks(4096, folder, ["qasper", "trec", "lcc", "samsum"])
    assert list(problems(tasks)) == ["longbench-qasper", "longbench-trec"]
    assert "there is no such file" in problems(tasks)["longbench-qasper"]
    experiment = Experiment(model="none", tasks=tasks)
    subjects = {"fake": lambda: subject_of(lambda prompt: "x = 1")}
    results = {r.task: r.entry for r in evaluate(experiment, subjects, Store())}
    assert "there is no such file" in results["longbench-qasper"].error
    assert "has no examples" in results["longbench-trec"].error
    assert [s.value for s in results["longbench-lcc"].scores.values()] == [1, 1, 1]
    assert results["longbench-samsum"].finished


def test_bad_settings(tmp_path):
    cases = [
        (
            lambda: LongBench("squad", 4096),
            "LongBench task is 'squad'; must be one of narrativeqa,",
        ),
        (
            lambda: LongBench("gov_report", 500),
            "context is 500; must be at least 576 for gov_report: 512 tokens of the answer and 64",
        ),
        (lambda: LongBench("lcc", 4096, examples=0), "examples is 0; must be an integer >= 1"),
        (
            lambda: longbench_tasks(4096, tasks=[]),
            r"LongBench tasks are \[\]; must be at least one",
        ),
        (lambda: longbench_tasks(4096, tasks=["lcc", "longbench-lcc"]), "each once"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()


def test_settings_follow_the_data_and_not_its_place(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    write(other, "lcc", [row("lcc", i) for i in range(3)])
    first, second = (LongBench("lcc", 4096, place).settings for place in (folder, other))
    assert first == second
    assert set(first) == {"task", "context", "examples", "chat", "sha256"}
    write(other, "lcc", [row("lcc", 0)])
    assert LongBench("lcc", 4096, other).settings != first
    missing = LongBench("qasper", 4096, other)
    assert (missing.settings["sha256"], missing.count) == ("", None)
