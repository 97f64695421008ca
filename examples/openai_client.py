"""OpenAI's client with a Gossamer server: one whole answer, one streamed.

    python examples/openai_client.py                                # starts a server for smollm2
    python examples/openai_client.py --url http://127.0.0.1:8000    # uses one that runs

Needs the extra `serve` and the package openai.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import openai
import typer

SERVE = ("serve", "smollm2", "--kv", "sparse:k=32,v=32", "--port", "0", "--kv-memory", "256MB")
TEXT = (
    "The lighthouse stands on a rock two miles from the shore, built in 1857 of grey granite. " * 6
)
QUESTION = [{"role": "user", "content": f"{TEXT}\n\nWhen was it built?"}]


@contextmanager
def started() -> Iterator[str]:
    """The URL of a server on a free port, which the log of the server names."""
    command = (sys.executable, "-m", "gossamer.cli.main", *SERVE)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            found = (re.search(r"listening on (http://\S+)", line) for line in server.stderr)
            match = next(filter(None, found), None)
            if match is None:
                raise RuntimeError("the server did not start; see `gossamer doctor`")
            yield match[1]
        finally:
            server.terminate()  # running requests finish first


def ask(url: str) -> None:
    """Ask twice and print the answers, and what the cache took."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    common = {"model": model, "messages": QUESTION, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**common)
    print(f"{model}: {whole.choices[0].message.content}")
    print("cache:", (whole.model_extra or {})["gossamer"])
    for chunk in client.chat.completions.create(**common, stream=True):
        print(chunk.choices[0].delta.content or "", end="|", flush=True)
    print()


def main(url: Annotated[str, typer.Option(help="A server that runs.")] = "") -> None:
    """Ask the server at URL, or one that is started for it."""
    if url:
        ask(url)
        return
    with started() as own:
        ask(own)


if __name__ == "__main__":
    typer.run(main)
