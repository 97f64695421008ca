"""LoRA adapters behind the API: named like models, added and removed while the server runs."""

import threading

import httpx
import pytest
import torch

from tests.engine.serving import tiny_with_tokenizer
from tests.models.adapters import save_adapter, save_merged
from tests.server.live import MODEL, SPARSE, SlowSteps, serving, wait_until

PROMPT = "The sea is everything. " * 3


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model, and folders of adapters next to each other."""
    torch.manual_seed(4)
    home = tmp_path_factory.mktemp("adapters")
    (home / "base").mkdir()
    model = tiny_with_tokenizer(home / "base", head_dim=32)
    (home / "open").mkdir()
    for seed, name in enumerate(("first", "second", "third")):
        save_adapter(home / "open" / name, model, seed=seed)
        save_merged(model, home / "open" / name, home / "base", home / f"merged-{name}")
    save_adapter(home / "closed", model)
    save_adapter(home / "open" / "large", model, r=32)
    return home


@pytest.fixture(scope="module")
def live(folders):
    options = {"lora": {"first": folders / "open" / "first"}, "max_loras": 3, "max_lora_rank": 8}
    settings = {"lora_dir": folders / "open"}
    with serving(folders / "base", ("dense", SPARSE), settings, **options) as live:
        yield live


def load(live, name, path):
    return live.post("/v1/load_lora_adapter", lora_name=name, lora_path=str(path))


def unload(live, name):
    return live.post("/v1/unload_lora_adapter", lora_name=name)


def names(live):
    return [model["id"] for model in live.get("/v1/models").json()["data"]]


def test_as_a_model(live, folders):
    """Answers are those of the merged model, and say which one they are from."""
    with serving(folders / "merged-first") as merged:
        expected = merged.text(PROMPT)
    answer = live.complete(PROMPT, model="first").json()
    assert (answer["model"], answer["choices"][0]["text"]) == ("first", expected)
    assert live.text(PROMPT) != expected
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "stream": True}
    chunks = live.post("/v1/chat/completions", model="first", **chat).text
    assert '"model":"first"' in chunks.replace(" ", "")
    listed = live.get("/v1/models").json()["data"]
    assert [m["id"] for m in listed] == [MODEL, "first"]
    assert listed[1]["parent"] == MODEL
    assert live.get("/v1/models/first").json() == listed[1]
    assert live.post("/tokenize", model="first", prompt="x").status_code == 200


def test_added_and_removed(live, folders):
    """In both engines, while a request runs, which finishes with the adapter that it began with."""
    assert load(live, "second", "second").status_code == 200
    assert names(live) == [MODEL, "first", "second"]
    with serving(folders / "merged-second") as merged:
        expected = merged.text(PROMPT, max_tokens=60)
    found = []
    with SlowSteps(live.llm, 0.01):
        fields = {"model": "second", "max_tokens": 60}
        runs = threading.Thread(target=lambda: found.append(live.text(PROMPT, **fields)))
        runs.start()
        wait_until(lambda: live.llm.engine.scheduler.running)
        assert unload(live, "second").status_code == 200
        gone = live.complete(model="second")
        assert load(live, "third", folders / "open" / "third").status_code == 200
        full = load(live, "fourth", "second")
        runs.join(30)
    assert found == [expected]
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
    assert full.status_code == 400
    assert "1 removed ones still answer requests; max_loras is 3" in full.json()["error"]["message"]
    assert live.text(PROMPT, model="third", kv=SPARSE) != live.text(PROMPT, kv=SPARSE)
    assert unload(live, "third").status_code == 200
    assert names(live) == [MODEL, "first"]


@pytest.mark.parametrize(
    "path", ["..", "../closed", "/etc", ".", "no", "x\0y", "x" * 3000, "first/.."]
)
def test_only_from_its_folder(live, path):
    answer = load(live, "x", path)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "lora_path"
    assert "must be a folder in that of --lora-dir" in error["message"]


def test_what_cannot_be_loaded(live, folders):
    (folders / "open" / "empty").mkdir(exist_ok=True)
    for name, path, message in (
        ("first", "second", "'first' is loaded already"),
        (MODEL, "second", f"lora_name is '{MODEL}', the model's own"),
        ("x", "large", "'x' has rank 32; max_lora_rank is 8"),
        ("x", "empty", "has no adapter_config.json"),
    ):
        answer = load(live, name, path)
        assert (answer.status_code, message in answer.json()["error"]["message"]) == (400, True)
    assert unload(live, "nobody").status_code == 404
    assert live.post("/v1/load_lora_adapter", lora_name="x").status_code == 400
    unknown = live.complete(model="nobody").json()["error"]
    assert unknown["message"] == f"model is 'nobody'; must be '{MODEL}', 'first'"
    assert names(live) == [MODEL, "first"]


def test_not_unless_it_is_allowed(folders):
    with serving(folders / "base") as closed:
        assert load(closed, "x", folders / "open" / "first").status_code == 404
        assert unload(closed, "x").status_code == 404


def test_only_by_admins(folders, tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text('[user]\nkey = "u"\n[boss]\nkey = "b"\nadmin = true\n')
    settings = {"api_keys": keys, "lora_dir": folders / "open"}
    with serving(folders / "base", settings=settings, max_loras=1) as live:
        body = {"lora_name": "x", "lora_path": "first"}
        for key, code in (("u", 403), ("b", 200)):
            headers = {"Authorization": f"Bearer {key}"}
            url = live.url + "/v1/load_lora_adapter"
            assert httpx.post(url, json=body, headers=headers, timeout=60).status_code == code
