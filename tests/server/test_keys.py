"""Keys of a file: names, limits per minute that hold whoever asks at once, changes."""

import asyncio
import hashlib
import itertools
import json
import logging
import os
import random

import httpx
import pytest

from gossamer.server import keys as keys_of
from gossamer.server.events import Failure
from gossamer.server.keys import Keys, Use, read_keys
from gossamer.server.logs import JSONLines
from gossamer.server.rates import MINUTE, Rates
from tests.server.live import MODEL, serving, wait_until

CLIENTS = 64


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "keys.toml"

    def write(text):
        path.write_text(text)
        return path

    return write


def by(key):
    return {"Authorization": f"Bearer {key}"}


# ---- the file -----------------------------------------------------------------------------


def test_a_file(file):
    digest = hashlib.sha256(b"k2").hexdigest()
    path = file(
        f'[alice]\nkey = "k1"\nrequests_per_minute = 3\n\n["Bob B."]\nsha256 = "{digest}"\n'
        "tokens_per_minute = 900\nadmin = true"
    )
    keys = Keys("k0", path)
    found = [keys.find(given) for given in (b"k0", b"k1", b"k2")]
    assert [(key.name, key.admin, key.use) for key in found] == [
        ("default", True, None),
        ("alice", False, Use("alice", 3, None)),
        ("Bob B.", True, Use("Bob B.", None, 900)),
    ]
    assert [keys.find(given) for given in (b"", b"k3", b"k1 ", digest.encode())] == [None] * 4
    assert "k1" not in repr(found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no keys; must have a table"),
        ("[a\nkey=1", "not TOML: at line 1"),
        ("a = 1", "a is no table; must be"),
        ("[a]", r"\[a\]: must have key or sha256, and not both"),
        ('[a]\nkey = "x"\nsha256 = "y"', "must have key or sha256, and not both"),
        ('[a]\nkey = "se cret"', "key must be ASCII characters without spaces"),
        ('[a]\nsha256 = "12"', "sha256 must be 64 hexadecimal digits"),
        ("[a]\nsha256 = 12", "sha256 must be 64 hexadecimal digits"),
        ('[a]\nkey = "x"\nrequest_per_minute = 1', "did you mean 'requests_per_minute'"),
        ('[a]\nkey = "x"\nname = "b"', r"\[a\] has 'name'"),
        ('[a]\nkey = "x"\ntokens_per_minute = 0', "tokens_per_minute is 0; must be an integer"),
        ('[a]\nkey = "x"\ntokens_per_minute = true', "tokens_per_minute is True; must be an int"),
        ('[a]\nkey = "x"\nadmin = 1', "admin is 1; must be true or false"),
        ('[default]\nkey = "x"', "and not 'default'"),
        ('[a]\nkey = "x"\n[b]\nkey = "x"', r"\[b\] has the key of \[a\]"),
    ],
)
def test_a_file_that_is_wrong(file, text, message):
    with pytest.raises(ValueError, match=message) as error:
        read_keys(file(text))
    assert "se cret" not in str(error.value)


def test_a_file_that_changes(file, monkeypatch, caplog):
    """It is read again; what is wrong with it later does not lock anybody out."""
    monkeypatch.setattr(keys_of, "CHECK_SECONDS", 0)
    caplog.set_level(logging.INFO)
    path = file('[a]\nkey = "old"')
    keys, times = Keys(file=path), itertools.count(10**18, 10**9)

    def change(text):
        file(text)
        os.utime(path, ns=(next(times),) * 2)  # whatever the clock of files is

    change('[a]\nkey = "new"')
    assert (keys.find(b"old"), keys.find(b"new").name) == (None, "a")
    change('[a]\nkey = "newer')
    assert keys.find(b"new").name == "a"
    path.unlink()
    assert keys.find(b"new").name == "a"
    change('[b]\nkey = "new"')
    assert keys.find(b"new").name == "b"
    assert "cannot be read again, the keys from before stay" in caplog.text
    assert '"newer' not in caplog.text


# ---- what is counted ----------------------------------------------------------------------


def test_limits_hold_in_every_minute():
    """Of 300 random requests, none is refused that fits, and none is let in that does not."""
    rng = random.Random(5)
    now, rates = [100.0], Rates(lambda: now[0])
    use, entered = Use("a", 5, 1000), []
    for _ in range(300):
        now[0] += rng.choice([0, 0.1, 3, 20])
        tokens = rng.randint(1, 400)
        recent = [amount for at, amount in entered if now[0] - at < MINUTE]
        surely = [amount for at, amount in entered if now[0] - at <= MINUTE + 0.25]
        counted = rates.enter(use, tokens)
        if isinstance(counted, Failure):
            assert len(surely) >= 5 or sum(surely) + tokens > 1000
            assert (counted.status, counted.code) == (429, "rate_limit_exceeded")
            assert 1 <= counted.retry_after <= 61
        else:
            assert len(recent) < 5
            assert sum(recent) + tokens <= 1000
            entered.append((now[0], tokens))
    assert len(entered) > 50


def test_retry_after_is_when_there_is_room():
    now = [0.0]
    rates = Rates(lambda: now[0])
    use = Use("a", None, 100)
    for at in (0, 10, 20):
        now[0] = at
        assert not isinstance(rates.enter(use, 30), Failure)
    refused = rates.enter(use, 50)
    now[0] += refused.retry_after - 1.5
    assert isinstance(rates.enter(use, 50), Failure)
    now[0] += 1.5
    assert not isinstance(rates.enter(use, 50), Failure)


def test_what_was_not_used_is_given_back():
    rates = Rates(lambda: 0.0)
    use = Use("a", None, 100)
    ticket = rates.enter(use, 90)
    assert isinstance(rates.enter(use, 20), Failure)
    rates.give_back(ticket, 15)
    assert not isinstance(rates.enter(use, 20), Failure)
    assert not isinstance(rates.enter(Use("b", 1, 100), 100), Failure), "of another key"
    endless = rates.enter(use, 101)
    assert (endless.status, endless.retry_after) == (400, None)


# ---- behind HTTP --------------------------------------------------------------------------


def together(live, key, count, **fields):
    """Answers to requests that come at once."""
    body = {"model": MODEL, "prompt": [5] * 10, "max_tokens": 10, "temperature": 0, **fields}

    async def ask():
        limits = httpx.Limits(max_connections=CLIENTS)
        async with httpx.AsyncClient(base_url=live.url, limits=limits, timeout=60) as client:
            post = lambda: client.post("/v1/completions", json=body, headers=by(key))  # noqa: E731
            return await asyncio.gather(*(post() for _ in range(count)))

    return asyncio.run(ask())


FILE = """
[requests]
key = "r"
requests_per_minute = 20
[tokens]
key = "t"
tokens_per_minute = 240
[free]
key = "f"
"""


@pytest.fixture(scope="module")
def limited(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(FILE)
    with serving(tiny, settings={"api_keys": path}) as live:
        yield live


def test_limits_under_64_clients(limited):
    """Of 64 requests at once, as many as a minute has room for."""
    answers = together(limited, "r", CLIENTS)
    codes = [answer.status_code for answer in answers]
    assert (codes.count(200), codes.count(429)) == (20, 44)
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert 1 <= int(refused.headers["retry-after"]) <= 61
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert "has used 20 of its 20 requests per minute" in error["message"]
    codes = [a.status_code for a in together(limited, "t", CLIENTS, ignore_eos=True)]
    assert (codes.count(200), codes.count(429)) == (12, 52), "240 tokens, 20 each"
    codes = [answer.status_code for answer in together(limited, "f", CLIENTS)]
    assert codes.count(200) == CLIENTS
    assert limited.host.state().in_flight == 0


def test_requests_that_are_wrong_are_not_counted(tiny, file):
    path = file('[a]\nkey = "a"\nrequests_per_minute = 1\ntokens_per_minute = 50')
    with serving(tiny, settings={"api_keys": path}) as live:
        assert together(live, "a", 1, temperature=9)[0].status_code == 400
        large = together(live, "a", 1, max_tokens=60)[0]
        assert large.status_code == 400
        assert large.json()["error"]["message"] == "max_tokens is 60; must be 1 to 40"
        long = together(live, "a", 1, prompt=[5] * 50)[0]
        assert (long.status_code, long.json()["error"]["code"]) == (400, "rate_limit_exceeded")
        codes = [answer.status_code for answer in together(live, "a", 3)]
        assert sorted(codes) == [200, 429, 429]


def test_an_output_ends_with_what_its_key_has(tiny, file):
    """One that the client gave no limit of its own."""
    path = file('[a]\nkey = "a"\ntokens_per_minute = 50')
    with serving(tiny, settings={"api_keys": path}) as live:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True}
        url = live.url + "/v1/chat/completions"
        answer = httpx.post(url, json=body, headers=by("a"), timeout=60).json()
        assert answer["usage"]["total_tokens"] == 50
        assert answer["choices"][0]["finish_reason"] == "length"


# ---- the log ------------------------------------------------------------------------------


def test_lines_of_json(tiny, file, caplog):
    """Id, key's name, tokens and times; never the key."""
    path = file('[alice]\nkey = "s3cret"')
    with serving(tiny, settings={"api_keys": path}) as live, caplog.at_level(logging.INFO):
        for given, own in (("my-id:1", True), ("x" * 200, False), ("a b", False)):
            headers = {**by("s3cret"), "X-Request-Id": given}
            body = {"model": MODEL, "prompt": "The sea", "max_tokens": 5, "ignore_eos": True}
            answer = httpx.post(live.url + "/v1/completions", json=body, headers=headers)
            assert (answer.headers["x-request-id"] == given) == own
            assert answer.json()["id"].endswith(answer.headers["x-request-id"])
        live.get("/v1/models")

        def told():
            return [r for r in caplog.records if hasattr(r, "fields")]

        wait_until(lambda: len(told()) == 4)  # a line follows its answer
        records = told()
    lines = [json.loads(JSONLines().format(record)) for record in records]
    first, last = lines[0], lines[-1]
    assert (
        first.items()
        >= {
            "level": "info",
            "id": "my-id:1",
            "method": "POST",
            "route": "/v1/completions",
            "status": 200,
            "key": "alice",
            "model": MODEL,
            "prompt_tokens": 7,
            "cached_tokens": 0,
            "output_tokens": 5,
        }.items()
    )
    assert 0 < first["first_token_seconds"] <= first["seconds"]
    assert (last["status"], "key" in last, "model" in last) == (401, False, False)
    assert "s3cret" not in json.dumps(lines)


def test_errors_in_lines_of_json():
    try:
        raise RuntimeError("lines\nof it")
    except RuntimeError as error:
        trace = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "it %s", ("failed",), trace)
    text = JSONLines().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert (line["message"], line["level"]) == ("it failed", "error")
    assert "RuntimeError: lines" in line["error"]
