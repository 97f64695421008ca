"""`make wheel`: one wheel for every Python, which works in a fresh environment."""

import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from gossamer import native

ROOT = Path(__file__).parent.parent
pytestmark = [
    pytest.mark.build,
    pytest.mark.skipif(not (ROOT / "CMakeLists.txt").exists(), reason="needs the source tree"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--quiet", "--wheel-dir", str(folder)], check=True)
    (found,) = folder.glob("*.whl")
    return found


def test_serves_every_python(wheel):
    assert wheel.name.endswith(f"-py3-none-linux_{platform.machine()}.whl")


def test_holds_package_libraries_and_types(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"gossamer/__init__.py", "gossamer/_C.so", "gossamer/py.typed"} <= names
    assert "gossamer/kit/templates/op.py.tmpl" in names
    assert ("gossamer/_C_cuda.so" in names) == (native.cuda.path is not None)
    assert not [n for n in names if n.startswith(("tests/", "benchmarks/", "csrc/"))]


def test_works_in_a_fresh_environment(wheel):
    version = torch.__version__.partition("+")[0]
    result = subprocess.run(
        [ROOT / "scripts/try_wheel.sh", wheel, version],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHON": sys.executable},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "works from" in result.stdout
