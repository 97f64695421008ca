"""The documentation as a site: it is built without a warning, and loads nothing from elsewhere."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest
import typer.main

from gossamer.cli.main import app
from gossamer.ops import OPS
from tests.docs.snippets import ROOT, page, snippets

ASKED = re.compile(r'<(?:script|link|img|iframe)[^>]*?(?:src|href)="([^"]+)"')
PAGES = ("docs/tutorial.md", "docs/concepts.md")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("needs MkDocs: pip install 'gossamer[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    settings = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_nothing_comes_from_elsewhere(site):
    for path in site.rglob("*.html"):
        for address in ASKED.findall(path.read_text()):
            assert not address.startswith(("http:", "https:", "//")), f"{path.name}: {address}"
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.search(r"url\(['\"]?https?:", styles)


def test_records_and_figures_are_part_of_it(site):
    assert (site / "files/benchmarks/results/nvidia-h200/decode_codes.jsonl").is_file()
    text = (site / "benchmarks.html").read_text()
    assert 'href="files/benchmarks/results/nvidia-h200/decode_codes.jsonl"' in text
    assert "<table>" in text
    assert (site / "figures/token-cache.svg").is_file()
    assert 'src="figures/token-cache.svg"' in (site / "index.html").read_text()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("engine", ("LLM", "SamplingParams", "EngineConfig")),
        ("kv", ("KVConfig", "Calibration")),
        ("masks", ("Longformer", "TileMap", "masked_attention")),
        ("ops", (*OPS, "GatedMLP")),
        ("fusion", ("OptimizedModel", "Options", "Plan", "optimize")),
        ("transformers", ("SparseCache", "use_gossamer")),
        ("bench", ("benchmark_kernel", "Record")),
    ],
)
def test_the_reference_is_made_of_docstrings(site, name, words):
    text = (site / f"api/{name}.html").read_text()
    for word in words:
        assert re.search(rf'id="[\w.]*\b{word}"', text), word


@pytest.mark.parametrize("path", PAGES)
def test_commands_of_pages_exist(path):
    commands = typer.main.get_command(app).commands
    code = "\n".join(s.text for s in snippets(page(path)) if s.language == "bash")
    named = re.findall(r"^gossamer ([\w-]+)", code, re.MULTILINE)
    named += re.findall(r"`gossamer ([\w-]+)[^`]*`", page(path))
    assert named
    assert set(named) <= set(commands)


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text()
    listed = set(re.findall(r": ([\w/-]+\.md)$", text, re.MULTILINE))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert {name for name in pages if not name.startswith("ops/")} | {"ops/README.md"} == listed
