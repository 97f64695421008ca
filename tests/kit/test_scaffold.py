"""`gossamer new-op`: what it writes is right as it is, and it writes all of it or nothing.

That the tests which it writes pass is part of tests/docs/test_custom_kernels.py.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from gossamer.cli.main import app
from gossamer.kit import lists, scaffold
from tests.kit.copies import ROOT, copy_checkout, run

runner = CliRunner()
NAME = "scaled_sum"
LONG = "a_name_of_thirty_two_letters_abc"  # the longest that is allowed


def snapshot(root: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(root)): p.read_bytes()
        for p in root.rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    return copy_checkout(tmp_path_factory.mktemp("fresh"))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A copy with two new ops, one of them in a new family."""
    copy = copy_checkout(tmp_path_factory.mktemp("made"))
    for arguments in ([NAME], [LONG, "--family", "zoo"]):
        result = runner.invoke(app, ["new-op", *arguments, "--root", str(copy)])
        assert result.exit_code == 0, result.output
    return copy


def test_the_python_sources_are_as_make_lint_wants_them(made):
    assert run(made, "ruff", "check", "--no-cache", ".").stdout == "All checks passed!\n"
    assert run(made, "ruff", "format", "--no-cache", "--check", ".").returncode == 0


def test_the_types_hold(made):
    """Without those of torch, which take mypy 20 s to read."""
    folders = ("gossamer/ops", "gossamer/kernels", "benchmarks/suites")
    wanted = [f"{folder}/{name}.py" for name in (NAME, LONG) for folder in folders]
    result = run(made, "mypy", "--follow-imports=skip", "--no-incremental", *wanted)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_c_plus_plus_sources_are_formatted(made):
    sources = [str(p) for name in (NAME, LONG) for p in (made / "csrc").glob(f"*/{name}.*")]
    assert len(sources) == 8
    result = run(made, "clang-format", "--dry-run", "--Werror", *sources, "csrc/bindings.cpp")
    assert result.returncode == 0, result.stderr


def test_every_list_has_it_once(made):
    for path in ("gossamer/ops/__init__.py", "benchmarks/suites/all.py", "csrc/bindings.cpp"):
        assert len(re.findall(rf"\b{NAME}\b", (made / path).read_text())) >= 2
    sources = re.findall(rf"csrc/\w+/{NAME}\S*cpp", (made / "CMakeLists.txt").read_text())
    assert sources == [f"csrc/elementwise/{NAME}.cpp", f"csrc/elementwise/{NAME}.kernel.cpp"]
    assert (made / "docs/ops/README.md").read_text().count(f"| [`{NAME}`]({NAME}.md) |") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Gelu"], "the name is 'Gelu'; must be lower case letters"),
        (["two words"], "the name is 'two words'; must be"),
        (["7up"], "the name is '7up'; must be"),
        (["../escape"], "the name is '../escape'; must be"),
        (["x" * 33], "the name has 33 letters; must have at most 32"),
        (["lambda"], "'lambda' is a word of Python"),
        (["sum"], "'sum' is a word of Python"),
        (["double"], "'double' is a word of C++"),
        (["elementwise"], "'elementwise' is used by the kernels of all ops"),
        (["silu_mul"], "there is an op 'silu_mul' (benchmarks/suites/silu_mul.py, "),
        (["kv_append"], "there is an op 'kv_append'"),
        (["checks"], "there is an op 'checks' (gossamer/ops/checks.py)"),
        (["good", "--family", "../x"], "the family is '../x'; must be"),
    ],
)
def test_bad_names(fresh, arguments, message):
    before = snapshot(fresh)
    result = runner.invoke(app, ["new-op", *arguments, "--root", str(fresh)])
    assert result.exit_code == 2
    assert message in result.output
    assert snapshot(fresh) == before


def test_a_folder_that_is_no_checkout(tmp_path):
    result = runner.invoke(app, ["new-op", NAME, "--root", str(tmp_path)])
    assert result.exit_code == 2
    assert "is not a checkout of Gossamer (no CMakeLists.txt)" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("benchmarks/suites/all.py", "SUITES = [\n", "found no list of benchmarks"),
        ("CMakeLists.txt", "project(other)\n", "found no gossamer_library(_C"),
        ("csrc/bindings.cpp", "// empty\n", "found no #include lines"),
        ("docs/ops/README.md", "# Operators\n", "found no rows of operators"),
    ],
)
def test_a_list_that_is_not_found(tmp_path, path, text, message):
    copy = copy_checkout(tmp_path / "copy")
    (copy / path).write_text(text)
    before = snapshot(copy)
    result = runner.invoke(app, ["new-op", NAME, "--root", str(copy)])
    assert result.exit_code == 2
    assert f"{path} cannot be edited: {message}" in result.output
    assert snapshot(copy) == before


def test_a_disk_that_fails_half_way(fresh, monkeypatch):
    before = snapshot(fresh)
    planned = scaffold.new_op(NAME, "newfamily", fresh)
    write, count = Path.write_text, iter(range(100))

    def fails(path, text):
        if next(count) == 11:  # all files and two edits are written
            raise OSError("no space left")
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", fails)
    with pytest.raises(OSError, match="no space left"):
        planned.apply()
    assert snapshot(fresh) == before
    assert not (fresh / "csrc/newfamily").exists()


def test_names_sort_as_ruff_sorts_them():
    names = ["a2", "a10", "a_b", "ab", "kv", "kv_pack", "zz9"]
    assert sorted(["kv_pack", "ab", "a10", "zz9", "a_b", "a2", "kv"], key=lists.order) == names


BINDING = """
#include "elementwise/NAME.h"
STABLE_TORCH_LIBRARY_FRAGMENT(gossamer, m) { m.def("NAMESCHEMA"); }
STABLE_TORCH_LIBRARY_IMPL(gossamer, CPU, m) { m.impl("NAME", TORCH_BOX(&gossamer::NAME_cpu)); }
"""
ISAS = {
    "generic": ("4",),
    "avx2": ("8", "-mavx2", "-mfma", "-mf16c"),
    "avx512": ("16", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"),
}


@pytest.mark.build
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="knows the flags of x86-64")
def test_its_c_plus_plus_compiles_and_is_right(made, tmp_path):
    """Its own files alone, with the flags of CMakeLists.txt that matter."""
    compiler = shutil.which("c++")
    assert compiler, "needs a C++ compiler"
    headers = Path(torch.__file__).parent / "include"
    common = [compiler, "-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
    common += ["-Werror", "-Wno-maybe-uninitialized", "-I", f"{made}/include", "-I", f"{made}/csrc"]
    common += ["-isystem", str(headers), "-DTORCH_TARGET_VERSION=0x020A000000000000"]
    text = BINDING.replace("NAME", NAME).replace("SCHEMA", scaffold.SCHEMA)
    (tmp_path / "binding.cpp").write_text(text)
    source, library = made / "csrc/elementwise" / NAME, tmp_path / "new.so"
    sources = [f"{source}.cpp", str(tmp_path / "binding.cpp"), str(ROOT / "csrc/cpu/isa.cpp")]
    objects = []
    for isa, (lanes, *flags) in ISAS.items():
        objects.append(str(tmp_path / f"{isa}.o"))
        values = [f"-DGOSSAMER_ISA={isa}", f"-DGOSSAMER_LANES={lanes}", "-ffp-contract=fast"]
        command = [*common, *values, *flags, "-c", f"{source}.kernel.cpp", "-o", objects[-1]]
        subprocess.run(command, check=True)
    torch_library = str(headers.parent / "lib/libtorch.so")
    link = [*common, "-shared", *sources, *objects, "-Wl,--no-as-needed", torch_library]
    subprocess.run([*link, "-o", str(library)], check=True)
    torch.ops.load_library(library)
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)):
        x, y = torch.randn(7, 33).to(dtype), torch.randn(33).to(dtype)
        got = torch.ops.gossamer.scaled_sum(x, y, 0.5)
        want = (x.double() + 0.5 * y.double()).to(dtype)
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    with pytest.raises(RuntimeError, match="scaled_sum: scale must be finite"):
        torch.ops.gossamer.scaled_sum(x, y, float("nan"))
