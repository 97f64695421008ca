"""The README's claims have records and commands; records that are old are named as such."""

import importlib.util
import re
from pathlib import Path

import pytest

from benchmarks import sources
from benchmarks.records import WRITERS, command_of
from benchmarks.reports import older
from benchmarks.reports.claims import CLAIMS, GPU
from tests.docs.snippets import page

ROOT = Path(__file__).parents[2]
README = page("README.md")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
GENERATED = re.compile(r"<!-- (\w[\w-]*) -->.*?<!-- /\1 -->", re.DOTALL)
MEASURED = re.compile(r"\d(?:\.\d+)?x\b|\d ms\b|\d tokens/s|\d\.\d+%|\b\d\d%(?! of)")
LINK = re.compile(r"\]\((benchmarks/[^)]+\.jsonl|docs/[^)]+)\)")


def paragraphs():
    """What people wrote: without code and generated tables."""
    text = FENCED.sub("", GENERATED.sub("", README))
    return [part for part in re.split(r"\n\s*\n", text) if MEASURED.search(part)]


def test_figures_in_sentences_link_to_records():
    found = paragraphs()
    assert found
    for part in found:
        links = LINK.findall(part)
        assert any(link.startswith("benchmarks/") for link in links), part
        for link in links:
            assert (ROOT / link.partition("#")[0]).is_file(), link


def test_the_first_table_links_to_records_and_commands():
    table = re.search(r"<!-- claims -->(.*)<!-- /claims -->", README, re.DOTALL)[1]
    rows = table.strip().splitlines()[2:]
    assert len(rows) == len(CLAIMS)
    for row, claim in zip(rows, CLAIMS, strict=True):
        assert f"[records](benchmarks/results/{GPU}/{claim.file}.jsonl)" in row
        assert "[command](docs/benchmarks.md#claims)" in row
        assert f"`{command_of(claim.file)}`" in page("docs/benchmarks.md")


@pytest.mark.parametrize("file", [*WRITERS, *(claim.file for claim in CLAIMS)])
def test_commands_exist(file):
    module = command_of(file).split()[2]
    assert importlib.util.find_spec(module) is not None


def committed():
    """Files of records, and of other lines that runs write."""
    folder = ROOT / "benchmarks"
    places = ("results/*", "quality", "quality/scores", "serving", "comparisons/transformers")
    return [path for place in places for path in sorted(folder.glob(f"{place}/*.jsonl"))]


@pytest.mark.parametrize("path", committed(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_file_of_records_can_be_made_again(path):
    module = command_of(path.stem).split()[2]
    assert importlib.util.find_spec(module) is not None


# ---- older records -------------------------------------------------------------------------------


def test_sources_of_an_op():
    found = sources.sources_of("silu_mul", {"cuda", "triton"})
    assert "csrc/elementwise/silu_mul.cu" in found
    assert "csrc/elementwise/gated.cuh" in found
    assert "gossamer/kernels/silu_mul.py" in found
    assert not any(path.endswith(".cpp") for path in found)
    assert "csrc/elementwise/gated.kernel.cpp" in sources.sources_of("silu_mul", {"cpu"})
    decode = sources.sources_of("decode_attention", {"cuda"})
    assert "csrc/attention/decode/codes_128.cu" in decode
    assert not any("masked" in path for path in decode)


def test_every_record_depends_on_something():
    measured = sources.measured()
    assert [file for (file, _), paths in measured.items() if not paths] == []
    files = {file for file, _ in measured}
    for path in committed():
        file = str(path.relative_to(ROOT))
        assert file in files or file in NOT_OURS, file


# vLLM's own, and simulated losses without a revision.
NOT_OURS = (
    "benchmarks/serving/loads_vllm.jsonl",
    "benchmarks/quality/scores/positions-smollm2.jsonl",
)


def test_claims_of_older_records_say_so():
    old = {file for file, _ in older.kept()}
    table = re.search(r"<!-- claims -->(.*)<!-- /claims -->", README, re.DOTALL)[1]
    for row, claim in zip(table.strip().splitlines()[2:], CLAIMS, strict=True):
        is_old = f"benchmarks/results/{GPU}/{claim.file}.jsonl" in old
        assert ("(docs/benchmarks.md#older-records)" in row) == is_old


def test_older_records_are_named():
    """Measure them again, or `make report`, which names them in docs/benchmarks.md."""
    if not sources.history():
        pytest.skip("there is no git history here")
    old, named = set(sources.older()), set(older.kept())
    assert old == named, f"run `make report`: {sorted(old ^ named)}"
