"""The README is true: commands and Python blocks run as printed, links lead somewhere."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT, page, snippets
from tests.engine.serving import need_smollm2

PAGE = page("README.md")
SNIPPETS = snippets(PAGE)
SERVE, CURL = "gossamer serve", "curl http://127.0.0.1:8000"
SHELL = [
    snippet
    for snippet in SNIPPETS
    if snippet.language == "bash" and not snippet.text.startswith(("make ", SERVE, CURL))
]
PYTHON = [snippet for snippet in SNIPPETS if snippet.language == "python"]
PAGES = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/README.md", "docs/operators.md"),
    *("docs/tutorial.md", "docs/concepts.md", "docs/figures.md", "docs/benchmarks.md"),
)
LINK = re.compile(r'\]\(([^)\s]+)\)|src="([^"]+)"')


def environment() -> dict[str, str]:
    """As after `source .venv/bin/activate`; other tests may want the cores, so threads sleep."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    kept = {name: v for name, v in os.environ.items() if name != "TRITON_INTERPRET"}
    return kept | {"PATH": path, "OMP_WAIT_POLICY": "passive", "COLUMNS": "120"}


def run(*command: str) -> str:
    need_smollm2()
    result = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,  # what `gossamer chat` reads: Ctrl-D
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def shell(text: str) -> str:
    return run("bash", "-euo", "pipefail", "-c", text)


def test_one_page_of_known_blocks():
    assert len(PAGE.splitlines()) <= 130
    assert {snippet.language for snippet in SNIPPETS} == {"bash", "python"}
    assert PAGE.count("```") == 2 * len(SNIPPETS)
    assert len(SHELL) >= 3
    assert len(PYTHON) >= 2


def test_make_targets():
    made = [line for snippet in SNIPPETS for line in snippet.text.splitlines() if "make " in line]
    named = re.findall(r"^make ([a-z-]+)", "\n".join(made), re.MULTILINE)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test"} <= set(named) <= set(targets)


@pytest.mark.parametrize("snippet", SHELL, ids=lambda snippet: snippet.name)
def test_shell(snippet):
    activate = "source .venv/bin/activate"
    if activate in snippet.text and not (ROOT / ".venv/bin/activate").exists():
        pytest.skip("the environment is not .venv")
    assert shell(snippet.text).strip()


@pytest.mark.parametrize("snippet", PYTHON, ids=lambda snippet: snippet.name)
def test_python(snippet):
    assert run(sys.executable, "-c", snippet.text).strip()


def test_serve():
    """The server and the request to it, on another port than 8000, which may be taken."""
    need_smollm2()
    (serve,) = (s.text for s in SNIPPETS if s.text.startswith(SERVE))
    (curl,) = (s.text for s in SNIPPETS if s.text.startswith(CURL))
    command = f"exec {serve.partition('#')[0].strip()} --port 0"
    with subprocess.Popen(
        ("bash", "-c", command), cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            found = (re.search(r"listening on (http://\S+)", line) for line in server.stderr)
            url = next(filter(None, found))[1]
            assert shell(f"curl --silent --fail {url}/health")
            answer = json.loads(shell(curl.replace("http://127.0.0.1:8000", url)))
            assert answer["choices"][0]["message"]["content"]
        finally:
            server.send_signal(signal.SIGTERM)
            server.stderr.read()
    assert server.returncode == 0


@pytest.mark.parametrize("path", PAGES)
def test_links(path):
    """Files exist, and headings that links name; addresses elsewhere are not looked up."""
    for link in filter(None, (a or b for a, b in LINK.findall(page(path)))):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (ROOT / path).parent / file if file else ROOT / path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text()), link


def anchors(text: str) -> set[str]:
    """The headings as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
