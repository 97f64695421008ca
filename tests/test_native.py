"""The native libraries: what they need from outside, and every instruction set they carry."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gossamer import native

LIBRARIES = [
    pytest.param(
        library,
        id=library.name,
        marks=pytest.mark.skipif(library.path is None, reason="built without CUDA"),
    )
    for library in (native.cpu, native.cuda)
]


def undefined_symbols(library: native.Library) -> list[str]:
    result = subprocess.run(
        ["nm", "-D", "--undefined-only", library.path], capture_output=True, text=True, check=True
    )
    return re.findall(r"[Uw] (\S+)", result.stdout)


@pytest.mark.parametrize("library", LIBRARIES)
def test_needs_no_python_and_no_cpp_torch(library):
    """So one binary serves every Python and every torch from 2.11 on: only C functions of torch."""
    symbols = undefined_symbols(library)
    assert any(s.startswith("aoti_torch_") for s in symbols)
    assert [s for s in symbols if re.match(r"_?Py[A-Z_]", s)] == []
    namespaces = re.compile(r"^_Z.*(?<!\d)(2at|3c10|5torch|6caffe2)[A-Z0-9]")
    assert [s for s in symbols if namespaces.search(s)] == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_exports_no_symbol_of_ours(library):
    """Hidden symbols cannot clash with those of another library in the process."""
    result = subprocess.run(
        ["nm", "-D", "--defined-only", library.path], capture_output=True, text=True, check=True
    )
    assert [line for line in result.stdout.splitlines() if "gossamer" in line] == []


ROOT = Path(__file__).parent.parent
OBJECTS = sorted(ROOT.glob("build/py3-*/CMakeFiles/gossamer_avx*.dir/**/*.o"))


@pytest.mark.skipif(not OBJECTS, reason="no build folder")
def test_kernels_of_an_instruction_set_share_no_code_with_the_others():
    """The linker keeps one copy of a weak function: an AVX-512 one would crash older CPUs."""
    result = subprocess.run(["nm", "-C", *OBJECTS], capture_output=True, text=True, check=True)
    weak = [line for line in result.stdout.splitlines() if re.search(r" [WVu] ", line)]
    assert weak == []


SUPPORTED = {"generic": ["generic"], "avx2": ["generic", "avx2"]}
SUPPORTED["avx512"] = [*SUPPORTED["avx2"], "avx512"]


@pytest.mark.parametrize("isa", SUPPORTED[native.cpu_isa() or "generic"])
def test_every_instruction_set_of_this_cpu_passes_the_grid(isa):
    if isa == native.cpu_isa():
        pytest.skip("the other tests run with this one")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/ops",
         "-k", "cpu-cpu or widths_on_the_cpu or tail"],
        capture_output=True, text=True, check=False, env=os.environ | {"GOSSAMER_ISA": isa},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-4000:]
    assert re.search(r"\d{2,} passed", result.stdout)


def test_the_instruction_set_can_be_lowered():
    code = "from gossamer import native; print(native.cpu_isa())"
    environment = os.environ | {"GOSSAMER_ISA": "generic"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert result.stdout.strip() == "generic"


@pytest.mark.parametrize("isa", SUPPORTED[native.cpu_isa() or "generic"])
def test_float16_subnormals_survive_flush_to_zero(isa):
    """They are normal numbers in float32, where the arithmetic is."""
    code = """
import torch, gossamer
torch.set_flush_denormal(True)
every = torch.arange(-1023, 1024).to(torch.int16).abs().view(torch.float16)
one, zero = torch.ones((), dtype=torch.float16), torch.zeros((), dtype=torch.float16)
got = gossamer.ops.element_wise_mul_add(every, one, zero, backend="cpu")
assert torch.equal(got.view(torch.int16), every.view(torch.int16))
"""
    environment = os.environ | {"GOSSAMER_ISA": isa}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_an_unknown_instruction_set_is_an_error():
    code = "import torch, gossamer; gossamer.ops.fused_add_gelu(torch.ones(8), torch.ones(8))"
    environment = os.environ | {"GOSSAMER_ISA": "avx3"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert "GOSSAMER_ISA is 'avx3'; must be generic, avx2 or avx512" in result.stderr
