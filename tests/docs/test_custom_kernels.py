"""Every snippet of docs/custom-kernels.md is run: Python in one program, shell in one copy."""

import re
import shutil

import pytest
import torch

from tests.docs.snippets import page, snippets
from tests.kit.copies import copy_checkout, run

PAGE = page("docs/custom-kernels.md")
SNIPPETS = snippets(PAGE)
SHELL = [(needs, text) for needs, language, text in SNIPPETS if language == "bash"]


def test_the_page_has_no_other_snippets():
    assert {language for _, language, _ in SNIPPETS} == {"python", "bash"}
    assert PAGE.count("```") == 2 * len(SNIPPETS)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """With the op that the first snippet makes and the others use."""
    made = copy_checkout(tmp_path_factory.mktemp("guide"))
    result = shell(made, SHELL[0][1])
    assert "wrote  gossamer/kernels/scaled_sum.py" in result.stdout
    return made


def shell(copy, text):
    result = run(copy, "bash", "-euo", "pipefail", "-c", text)
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def test_python(copy):
    program = "\n".join(text for _, language, text in SNIPPETS if language == "python")
    (copy / "build").mkdir(exist_ok=True)
    (copy / "build/guide.py").write_text(program)
    result = run(copy, "python", "build/guide.py")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "KernelTime(name=" in result.stdout
    assert result.stdout.count("x is") >= 1
    assert (copy / "build/profile/profile_trace.json").is_file()


def missing(needs):
    """Why a snippet cannot run here; "" where it can."""
    for tool in (needs or "").split():
        if tool == "gpu" and not torch.cuda.is_available():
            return "needs a GPU"
        if tool != "gpu" and shutil.which(tool) is None:
            return f"needs {tool}"
    return ""


# What a snippet must have printed, besides ending well.
PRINTED = {
    "pytest -q tests/ops -k": r"^[4-9]\d passed",
    "benchmarks.suites.scaled_sum": "add_alpha",
    "gossamer profile": "gossamer::silu_mul",
    "GOSSAMER_BACKENDS": r"\('reference', 'triton'\)",
    "check-op": r"only reference: same result from reference(.|\n)*not ready: scaled_sum",
    "kit.pages": r"\A\Z",  # new-op wrote them as they should be
}


@pytest.mark.parametrize(("needs", "text"), SHELL[1:], ids=[t[:40].strip() for _, t in SHELL[1:]])
def test_shell(copy, needs, text):
    if reason := missing(needs):
        pytest.skip(reason)
    result = shell(copy, text)
    for command, printed in PRINTED.items():
        if command in text:
            assert re.search(printed, result.stdout + result.stderr, re.MULTILINE)
