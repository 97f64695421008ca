"""`gossamer report`: one page without other files, and what got worse between two runs."""

import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from benchmarks.figures.command import named
from benchmarks.records import FOLDER
from benchmarks.reports.html import blocks
from gossamer.bench import read_records, write_records
from gossamer.cli.main import app
from tests.server.test_page import NAMES

SHOWN = (
    *("token-cache", "quality-speed", "decode_speedup", "decode-limit"),
    *("stof-fig12", "mustafar-quality"),
)
VOID = {"meta", "link", "path", "use", "rect", "image", "br"}


def invoke(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


class Balanced(HTMLParser):
    """Raises where a tag is closed that is not open."""

    def __init__(self):
        super().__init__()
        self.open, self.addresses = [], []

    def handle_starttag(self, tag, attrs):
        self.addresses += [v for k, v in attrs if k in ("href", "src", "xlink:href") and v]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag, tag


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Of a part of the committed records and figures, which is quick."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("report")
    for name in ("results/nvidia-h200/decode_codes.jsonl", "quality/smollm2-135m.jsonl"):
        target = folder / "records" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(FOLDER / name, target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.reports.report.FIGURES", named(SHOWN))
        result = invoke("--records", folder / "records", "-o", folder)
    assert result.exit_code == 0, result.output
    return result, folder / "gossamer-report.html"


def test_the_page_stands_alone(page):
    result, path = page
    text = path.read_text()
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert all(address.startswith(("#", "data:")) for address in parser.addresses)
    assert "<script" not in text
    assert text.count("<svg") == text.count("<figure") == len(SHOWN) - 1
    assert "Wins and losses" in text
    assert "NVIDIA H200" in text
    assert "left out: decode_speedup: " in result.stderr


def test_the_summary_has_the_tables(page):
    text = (page[1].parent / "gossamer-report.md").read_text()
    assert "## Wins and losses" in text
    assert "| `decode_attention` |" in text


def test_the_page_in_a_browser(page):
    """Without an error, without a request, and with every figure in sight."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'gossamer[dev]'")
    chromium = next(filter(None, map(shutil.which, NAMES)), None)
    if chromium is None:
        pytest.skip("needs Chromium")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page()
        problems, requests = [], []
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto(page[1].as_uri())
        boxes = [figure.bounding_box() for figure in tab.query_selector_all("figure svg")]
        browser.close()
    assert problems == []
    assert all(url.startswith(("file:", "data:")) for url in requests)
    assert all(box["width"] > 200 and box["height"] > 100 for box in boxes)


def test_tables_become_html():
    made = blocks("Two of `3`:\n\n| a | b |\n| --- | --- |\n| **1 < 2** | [x](y.md) |")
    assert "<p>Two of <code>3</code>:</p>" in made
    assert "<th>a</th>" in made
    assert "<td><b>1 &lt; 2</b></td><td>x</td>" in made


# ---- two runs ------------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path):
    """Records of one run, and the same as the second."""
    records = read_records(FOLDER / "results/nvidia-h200/silu_mul.jsonl")[:6]
    for name in ("before", "after"):
        write_records(records, tmp_path / name / "nvidia-h200/silu_mul.jsonl")
    return records, tmp_path / "before", tmp_path / "after"


def change(record, factor, **more):
    times = {n: getattr(record, n) * factor for n in ("median_ms", "low_ms", "high_ms")}
    return replace(record, **times, **more)


def test_equal_runs(runs):
    result = invoke("--compare", *runs[1:])
    assert result.exit_code == 0, result.output
    assert result.output == "6 points in common: 0 worse, 0 better, beyond noise.\n"


def test_what_got_worse_is_listed(runs):
    records, before, after = runs
    new = [
        change(records[0], 1.5),
        change(records[1], 0.5),
        change(records[2], 1.02),  # within 3%
        replace(records[3], median_ms=records[3].high_ms, high_ms=9.0),  # spans touch
        change(records[4], 1.0, relative_error=records[4].relative_error * 10),
        records[5],
    ]
    write_records(new, after / "nvidia-h200/silu_mul.jsonl")
    result = invoke("--compare", before, after)
    assert result.exit_code == 1
    assert "6 points in common: 2 worse, 1 better" in result.output
    rows = [line for line in result.output.splitlines() if line.startswith("| silu_mul")]
    assert len(rows) == 2
    assert re.search(r"relative error .* 10.00x worse", rows[0])
    assert re.search(r"time .* 1.50x worse", rows[1])


def test_quality_is_compared(tmp_path):
    lines = (FOLDER / "quality/smollm2-135m.jsonl").read_text().splitlines()[:3]
    for name, text in (("a", lines), ("b", [*lines[:2], lines[2].replace("0.03198", "0.09")])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.jsonl").write_text("\n".join(text) + "\n")
    result = invoke("--compare", tmp_path / "a", tmp_path / "b")
    assert result.exit_code == 1
    assert (
        "| model | `dense:int4` |  | NLL | +0.0320 ± 0.0053 | +0.0900 ± 0.0053 |" in result.output
    )


def test_folders_that_cannot_be_compared(runs, tmp_path):
    records, before, after = runs
    result = invoke("--compare", before, tmp_path / "nothing")
    assert result.exit_code == 2
    assert "nothing is not a folder of records" in result.stderr
    (tmp_path / "empty").mkdir()
    result = invoke("--compare", before, tmp_path / "empty")
    assert "have no point in common" in result.stderr
    write_records([replace(records[0], device="A100")], after / "nvidia-h200/silu_mul.jsonl")
    result = invoke("--compare", before, after)
    assert "NVIDIA H200 before, A100 after; must be one device" in result.stderr
