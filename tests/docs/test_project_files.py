"""Files about the project name versions and commands that exist."""

import re

import pytest

from gossamer import __version__
from tests.docs.snippets import ROOT, page


def read(path: str) -> str:
    return page(path) or pytest.skip(f"{path} is not here")


def test_versions():
    assert f"\nversion: {__version__}\n" in read("CITATION.cff")
    headings = re.findall(r"^## (\d+\.\d+\.\d+)", read("CHANGELOG.md"), re.MULTILINE)
    assert re.sub(r"\.dev\d+$", "", __version__) in headings
    assert headings == sorted(headings, reverse=True)


def test_the_workflow_calls_make():
    targets = re.search(r"target: \[(.*)\]", read(".github/workflows/ci.yml"))[1].split(", ")
    assert targets == ["test", "lint", "wheel"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_hooks_are_the_tools_of_make_lint():
    entries = re.findall(r"entry: \.venv/bin/(\S+)", read(".pre-commit-config.yaml"))
    recipe = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    assert set(entries) == set(re.findall(r"\$\(BIN\)/(\S+)", recipe))
