"""A job from file to file: answers are the engine's own, mistakes are told line by line."""

import json
import logging

import pytest

from gossamer.batch import Summary, local, run
from tests.batch.jobs import OPTIONS, completion, read, setup, write
from tests.engine.serving import cpu_llm, greedy
from tests.models.adapters import save_adapter

MESSAGES = [{"role": "user", "content": "w9 w10"}]


def test_answers_are_the_engines_own(words, tmp_path):
    lines = [completion(i) for i in range(40)]
    chat = {"model": "words", "messages": MESSAGES, "temperature": 0, "max_tokens": 6}
    url = {"url": "/v1/chat/completions"}
    lines.append(completion(40) | url | {"body": chat})
    source, target = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert run(setup(words), source, target, local.compute) == Summary(41, 41)
    with cpu_llm(words) as llm:
        prompts = [line["body"].get("prompt", MESSAGES) for line in lines]
        params = [greedy(line["body"]["max_tokens"]) for line in lines]
        expected = [o.outputs[0].text for o in llm.generate(prompts, params)]
    found = read(target)
    choices = [found[i + 1]["response"]["body"]["choices"][0] for i in range(41)]
    assert [c.get("text") or c["message"]["content"] for c in choices] == expected
    assert [found[i + 1]["custom_id"] for i in range(41)] == [f"c{i}" for i in range(41)]


def test_a_body_means_what_it_means_to_the_server(words, tmp_path):
    fields = {
        "prompt": [[7, 8], [9]],
        "n": 2,
        "seed": 3,
        "temperature": 1.0,
        "logprobs": 1,
        "max_tokens": 8,
        "kv": "sparse:k=8,v=8",
    }
    free = completion(0, **fields)
    spec = {"kv": "sparse:k=8,v=8"}
    source, target = write(tmp_path / "in.jsonl", [free]), tmp_path / "out.jsonl"
    run(setup(words, **spec), source, target, local.compute)
    first = read(target)[1]["response"]["body"]
    assert [len(choice["logprobs"]["tokens"]) for choice in first["choices"]] == [8] * 4
    assert first["gossamer"]["kv"] == "sparse:k=8,v=8"
    stop = first["choices"][2]["text"].split()[3]
    source, again = write(source, [completion(0, **fields, stop=stop)]), tmp_path / "again.jsonl"
    run(setup(words, **spec), source, again, local.compute)
    second = read(again)[1]["response"]["body"]["choices"][2]
    assert second["finish_reason"] == "stop"
    assert second["text"] == first["choices"][2]["text"].split(stop)[0]


def test_a_job_goes_on_where_it_ended(words, tmp_path):
    lines = [completion(i, temperature=1.0, seed=i) for i in range(30)]
    source, whole = write(tmp_path / "in.jsonl", lines), tmp_path / "whole.jsonl"
    run(setup(words), source, whole, local.compute)
    content = whole.read_bytes()
    target = tmp_path / "out.jsonl"
    target.write_bytes(content[: len(content) // 2])
    assert run(setup(words), source, target, local.compute) == Summary(30, 30)
    assert target.read_bytes().startswith(content[: content.rfind(b"\n", 0, len(content) // 2)])

    def texts(path):
        return {n: r["response"]["body"]["choices"][0]["text"] for n, r in read(path).items()}

    assert texts(target) == texts(whole)


def test_nothing_is_loaded_where_nothing_is_left(words, tmp_path):
    source, target = write(tmp_path / "in.jsonl", [completion(1)]), tmp_path / "out.jsonl"
    run(setup(words), source, target, local.compute)
    before = target.read_bytes()

    def never(*_):
        raise AssertionError("called")

    assert run(setup(words), source, target, never) == Summary(1, 1)
    assert target.read_bytes() == before
    (tmp_path / "empty.jsonl").write_text("\n \n")
    assert run(setup(words), tmp_path / "empty.jsonl", tmp_path / "none", never) == Summary(0, 0)


@pytest.mark.parametrize(
    "changes",
    [{"kv": "sparse:k=8,v=8"}, {"name": "x"}, {"options": {"device": "cpu", "max_model_len": 64}}],
)
def test_another_job_does_not_go_on(words, tmp_path, changes):
    source, target = write(tmp_path / "in.jsonl", [completion(1)]), tmp_path / "out.jsonl"
    run(setup(words), source, target, local.compute)
    with pytest.raises(ValueError, match="results of another model, cache, dtype"):
        run(setup(words, **changes), source, target, local.compute)
    write(source, [completion(2)])
    with pytest.raises(ValueError, match="results of another input"):
        run(setup(words), source, target, local.compute)


def without(name):
    return {key: value for key, value in completion(1).items() if key != name}


# Lines that are no requests: custom_id, code, param and a part of the message of their errors.
WRONG = [
    ("no json", None, "invalid_json", None, "not JSON: Expecting value"),
    ('{"custom_id": "c1"', None, "invalid_json", None, "not JSON"),
    ("[" * 9999, None, "invalid_json", None, "not JSON: maximum recursion depth"),
    ([1, 2], None, None, None, "the line is list; must be an object"),
    (without("custom_id"), None, "missing_field", "custom_id", "custom_id is missing"),
    (completion(1) | {"custom_id": 7}, None, "string_type", "custom_id", "custom_id is 7"),
    (completion(1) | {"custom_id": ""}, None, "string_too_short", "custom_id", "at least 1"),
    (completion(1) | {"custom_id": "\ud800"}, "\ud800", "string_unicode", "custom_id", "unicode"),
    (completion(1) | {"method": "GET"}, "c1", "literal_error", "method", "method is 'GET'"),
    (completion(1) | {"url": "/v1/embeddings"}, "c1", "literal_error", "url", "/v1/completions"),
    (completion(1) | {"body": "text"}, "c1", "dict_type", None, "the body is 'text'"),
    (without("body"), "c1", "missing_field", None, "the body is missing"),
    (completion(1) | {"x": 1}, "c1", "unknown_field", "x", "x: no such field"),
    (completion(1, stream=True), "c1", None, "body.stream", "must be false in a batch"),
    (completion(1, prompt="x" * 2_000_000), None, "too_large", None, "the line is too long"),
]


@pytest.fixture(scope="module")
def many(words, tmp_path_factory):
    """Results of lines with mistakes, each between two right ones."""
    folder, lines = tmp_path_factory.mktemp("wrong"), []
    for i, (line, *_) in enumerate(WRONG):
        lines += [completion(1000 + i), line if i == 0 else _with_own_id(line, i)]
    source, target = write(folder / "in.jsonl", lines), folder / "out.jsonl"
    found = run(setup(words), source, target, local.compute)
    assert found == Summary(2 * len(WRONG), len(WRONG))
    return read(target)


def _with_own_id(line, i):
    is_c1 = isinstance(line, dict) and line.get("custom_id") == "c1"
    return line | {"custom_id": f"wrong {i}"} if is_c1 else line


@pytest.mark.parametrize("i", range(len(WRONG)))
def test_a_line_that_is_no_request(many, i):
    _, custom_id, code, param, message = WRONG[i]
    result, right = many[2 * i + 2], many[2 * i + 1]
    assert result["custom_id"] == (f"wrong {i}" if custom_id == "c1" else custom_id)
    assert result["response"] is None
    error = result["error"]
    assert (error["code"], error["param"], error["line"]) == (code, param, 2 * i + 2)
    assert message in error["message"]
    assert right["response"]["status_code"] == 200


def test_a_custom_id_that_comes_again(words, tmp_path):
    wrong = completion(1) | {"url": "/v2"}
    lines = [wrong, completion(2), completion(1), completion(2), completion(2, prompt="w3")]
    source, target = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert run(setup(words), source, target, local.compute) == Summary(5, 1)
    found = read(target)
    assert [found[n]["custom_id"] for n in range(1, 6)] == ["c1", "c2", "c1", "c2", "c2"]
    assert found[2]["response"]["status_code"] == 200
    for number in (3, 4, 5):
        assert found[number]["error"]["code"] == "duplicate_custom_id"
        assert found[number]["error"]["line"] == number


# Bodies that the server refuses: status, code and a part of the message.
REFUSED = [
    ({"model": "other"}, 404, "model_not_found", "model is 'other'; must be 'words'"),
    ({"suffixes": 2}, 400, "unknown_field", "suffixes: no such field"),
    ({"temperature": 9}, 400, "less_than_equal", "temperature is 9"),
    ({"prompt": "w1 " * 600}, 400, "context_length_exceeded", "has 600 tokens"),
    ({"prompt": []}, 400, "too_short", "prompt"),
    ({"kv": "int8"}, 400, "kv_not_loaded", "loaded: dense"),
    ({"stream": "yes"}, 400, "bool_type", "stream is 'yes'"),
    ({"prompt": "\ud800"}, 400, "invalid_value", "half of a character"),
    ({"prompt": ["w1"] * 100, "n": 2}, 400, None, "prompts times n is 200"),
]


def test_a_body_that_is_wrong(words, tmp_path):
    lines = [completion(i, **fields) for i, (fields, *_) in enumerate(REFUSED)]
    source, target = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert run(setup(words), source, target, local.compute) == Summary(len(REFUSED), 0)
    found = read(target)
    for number, (_, status, code, message) in enumerate(REFUSED, start=1):
        assert found[number]["error"] is None
        response = found[number]["response"]
        assert response["status_code"] == status
        error = response["body"]["error"]
        assert error["code"] == code
        assert message in error["message"]


def test_numbers_that_json_does_not_know(words, tmp_path):
    line = json.dumps(completion(1)).replace('"temperature": 0', '"temperature": NaN')
    assert "NaN" in line
    source, target = write(tmp_path / "in.jsonl", [line]), tmp_path / "out.jsonl"
    run(setup(words), source, target, local.compute)
    assert "temperature is nan" in read(target)[1]["response"]["body"]["error"]["message"]


def test_all_lines_at_once_are_not_too_many(words, tmp_path, caplog):
    """Nobody is told to come back later, however many wait."""
    caplog.set_level(logging.ERROR)
    lines = [completion(i, n=4) for i in range(60)]
    options = setup(words).options | {"max_num_seqs": 2}
    source, target = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    found = run(setup(words, options=options, in_flight=60), source, target, local.compute)
    assert found == Summary(60, 60)
    assert not caplog.records


def test_lines_name_adapters(words, tmp_path):
    """Each its own, in one batch; a job with another adapter of that name is another job."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(words)
    lora = {name: save_adapter(tmp_path / name, model, seed=i) for i, name in enumerate("ab")}
    models = ["a", "b", "words", "a", "c"]
    lines = [
        completion(9, model=name, max_tokens=5) | {"custom_id": f"{i}"}
        for i, name in enumerate(models)
    ]
    source, target = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    job = setup(words, options=OPTIONS | {"lora": lora})
    assert run(job, source, target, local.compute) == Summary(5, 4)
    answers = [line["response"] for _, line in sorted(read(target).items())]
    assert [each["status_code"] for each in answers] == [200] * 4 + [404]
    texts = [each["body"]["choices"][0]["text"] for each in answers[:4]]
    with cpu_llm(words, lora=lora) as llm:
        found = llm.generate(
            [lines[0]["body"]["prompt"]] * 4, greedy(5), lora=["a", "b", None, "a"]
        )
    assert texts == [output.outputs[0].text for output in found]
    assert len(set(texts)) == 3
    swapped = {"a": lora["b"], "b": lora["a"]}
    assert setup(words, options=OPTIONS | {"lora": swapped}).digest() != job.digest()
    with pytest.raises(ValueError, match="--lora has 'words', the model's own name"):
        setup(words, options={"lora": {"words": lora["a"]}})
