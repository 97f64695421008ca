"""Clients of a load test, against servers that answer by heart."""

import asyncio
import shutil
import ssl
import subprocess

import pytest

from gossamer.server.load.client import run
from gossamer.server.load.schedule import ScheduledRequest
from gossamer.server.load.target import Target

HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
TEXT = b'data: {"choices": [{"text": "a"}]}\n\n'
LAST = (
    b'data: {"choices": [], "gossamer": {"kv": "dense"}, "usage": {"prompt_tokens": 1, '
    b'"completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}}}\n\ndata: [DONE]\n\n'
)


def result_of(*parts, tls=None, host="127.0.0.1", **request):
    """What a client makes of an answer that comes in these parts."""

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.close()

    async def exchange():
        async with await asyncio.start_server(answer, host, 0, ssl=tls) as server:
            port = server.sockets[0].getsockname()[1]
            scheme = "http" if tls is None else "https"
            target = Target(f"{scheme}://{host}:{port}", None, {"model": "tiny"})
            return await run(target, [ScheduledRequest((1,), 2, 0.0, **request)])

    (result,) = asyncio.run(exchange())
    return result


def test_events_in_pieces():
    """Times are those of the ends of events."""
    found = result_of(HEAD + TEXT[:5], TEXT[5:] + TEXT[:20], TEXT[20:], LAST)
    assert (found.text, found.tokens, found.error) == ("aa", 2, None)
    assert 0.005 < found.gaps[0] < found.whole < 5
    assert found.first > 0.005


def test_a_server_that_hangs_up():
    assert result_of(HEAD, TEXT).error == "the stream ended early"
    assert result_of(b"").error == "RemoteProtocolError"


def test_refusals():
    body = b'{"error": {"message": "the queue is full"}}'
    for content, message in ((body, "the queue is full"), (b"<p>busy", "<p>busy"), (b"[]", "[]")):
        head = b"HTTP/1.1 429 Too Many\r\nContent-Length: %d\r\n\r\n" % len(content)
        found = result_of(head + content)
        assert (found.error, found.message) == ("status 429", message)


def test_clients_that_leave():
    after_one = result_of(HEAD, TEXT, TEXT, LAST, leave=1)
    assert (after_one.left, len(after_one.chunks), after_one.error) == (True, 1, None)
    hasty = result_of(HEAD, *[TEXT] * 500, patience=0.1)
    assert (hasty.left, hasty.error) == (True, None)
    assert hasty.whole < 2


def test_nobody_listens():
    target = Target("http://127.0.0.1:1", None, {"model": "tiny"})
    (found,) = asyncio.run(run(target, [ScheduledRequest((1,), 2, 0.0)]))
    assert found.error == "ConnectionRefusedError"


def test_tls(tmp_path, monkeypatch):
    """Certificates that the environment names are trusted, others are not."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    name = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    files = ("-keyout", str(key), "-out", str(certificate))
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *files, *name]
    subprocess.run(command, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    assert (
        result_of(HEAD, TEXT, LAST, tls=tls, host="localhost").error == "SSLCertVerificationError"
    )
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    found = result_of(HEAD, TEXT, LAST, tls=tls, host="localhost")
    assert (found.text, found.error) == ("a", None)
