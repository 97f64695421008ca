"""Who may ask, who is answered, and what is told."""

import logging

import httpx
import pytest

from gossamer.server import Limits, Settings
from tests.server.live import serving

KEY = "k3y-of-the-test"
SECRET = "my secret prompt"


def test_the_key(tiny):
    with serving(tiny, settings={"api_key": KEY}) as live:
        for path in ("/v1/models", "/metrics", "/v1/gossamer/stats", "/openapi.json", "/nowhere"):
            for value in (None, KEY, f"Basic {KEY}", f"Bearer {KEY}x", "Bearer", "Bearer \xff"):
                headers = {} if value is None else {"Authorization": value.encode("latin-1")}
                answer = httpx.get(live.url + path, headers=headers)
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "invalid_api_key"
                assert KEY not in answer.text
        assert live.complete().status_code == 401
        for path in ("/", "/health", "/static/style.css"):
            assert live.get(path).status_code == 200
        headers = {"Authorization": f"Bearer {KEY}"}
        assert httpx.get(live.url + "/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("key", ["", "with space", "schlüssel", "line\n"])
def test_a_key_that_no_header_can_hold(key):
    with pytest.raises(ValueError, match="API key must be ASCII"):
        Settings(model="m", api_key=key)


def test_the_key_is_not_told():
    assert KEY not in repr(Settings(model="m", api_key=KEY))


@pytest.mark.parametrize(
    "bad", [{"queue": -1}, {"sequences": 0}, {"body": 10}, {"timeout": 0}, {"output_tokens": 0}]
)
def test_limits_are_checked(bad):
    [(name, value)] = bad.items()
    with pytest.raises(ValueError, match=f"{name} is {value}; must be at least"):
        Limits(**bad)


def preflight(live, origin):
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    return httpx.options(live.url + "/v1/completions", headers=headers)


def test_no_cors_by_default(live):
    answer = preflight(live, "https://elsewhere.example")
    assert answer.status_code == 405
    assert not any(name.startswith("access-control") for name in answer.headers)


def test_cors_for_named_origins(tiny):
    with serving(tiny, settings={"origins": ("https://here.example",)}) as live:
        allowed = preflight(live, "https://here.example")
        assert allowed.headers["access-control-allow-origin"] == "https://here.example"
        refused = preflight(live, "https://elsewhere.example")
        assert "access-control-allow-origin" not in refused.headers


def test_names_of_the_server(tiny):
    """A name that someone else lets point here is not one of them."""
    with serving(tiny, settings={"hosts": ("localhost", "127.0.0.1", "::1")}) as live:
        port = live.url.rsplit(":", 1)[1]
        for name, status in (
            ("localhost", 200),
            (f"LOCALHOST:{port}", 200),
            (f"[::1]:{port}", 200),
            ("127.0.0.1:", 200),
            ("evil.example", 403),
            (f"evil.example:{port}", 403),
            ("127.0.0.1.evil.example", 403),
            ("", 403),
        ):
            answer = httpx.get(live.url + "/v1/models", headers={"Host": name})
            assert answer.status_code == status, name


def test_prompts_are_not_logged(live, caplog):
    with caplog.at_level(logging.DEBUG):
        live.complete(SECRET)
        live.get(f"/v1/models/{SECRET}")
        live.get(f"/{SECRET}?q={SECRET}")
    assert "POST /v1/completions 200" in caplog.text
    ours = [r.getMessage() for r in caplog.records if not r.name.startswith("http")]
    assert not any("secret" in line for line in ours)


def test_prompts_are_logged_if_asked_for(tiny, caplog):
    with serving(tiny, settings={"log_prompts": True}) as live, caplog.at_level(logging.INFO):
        live.complete(SECRET)
    assert SECRET in caplog.text


def test_headers(live):
    answer = live.get("/")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert len(answer.headers["x-request-id"]) == 24
    assert "server" not in answer.headers
