"""Which source files a record depends on, and whether they have changed since it was measured."""

import re
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from benchmarks.records import FOLDER, devices, is_gpu, read_lines
from gossamer.ops import OPS

ROOT = FOLDER.parent
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
IMPORT = re.compile(r"^from gossamer\.kernels\.(\w+) import", re.MULTILINE)
NATIVE = {"cpu": (".cpp", ".h"), "cuda": (".cu", ".cuh", ".h")}
ENGINE = (
    *("gossamer/engine", "gossamer/models", "gossamer/layers", "gossamer/kv", "gossamer/kernels"),
    *("csrc/attention", "csrc/gemm", "csrc/kv", "csrc/norm", "csrc/rope"),
)
# Records of whole programs, by the beginning of their op.
PROGRAMS = {
    "engine_": ENGINE,
    "transformers_": (*ENGINE, "gossamer/integrations"),
    "masked_host": ("gossamer/attention", "gossamer/masks", "csrc/attention/masked"),
    "structured": ("gossamer/engine", "gossamer/models", "gossamer/kv"),
    "fusion": ("gossamer/fusion", "gossamer/attention", "gossamer/kernels", "csrc"),
}
QUALITY = ("gossamer/models", "gossamer/layers", "gossamer/kv", "gossamer/evaluation", "csrc/kv")
# Records and other lines that are not in results/, by file. vLLM's lines depend on nothing of ours.
LINES = {
    "serving/loads.jsonl": ENGINE,
    "serving/loads_vllm.jsonl": (),
    "serving/lora.jsonl": ENGINE,
    "serving/replicas.jsonl": (*ENGINE, "gossamer/cluster", "gossamer/server"),
    "serving/batch_kill.jsonl": (*ENGINE, "gossamer/batch", "gossamer/server"),
    "quality/smollm2-135m.jsonl": QUALITY,
    "quality/weights/weights-smollm2.jsonl": (*QUALITY, "csrc/gemm"),
    "quality/scores/auto-smollm2.jsonl": QUALITY,
    "quality/scores/peers-smollm2.jsonl": QUALITY,
    "comparisons/transformers/nvidia-h200.jsonl": (*ENGINE, "gossamer/integrations"),
}
NEWEST = ("serving/loads.jsonl",)  # have lines of earlier versions too, which no table shows


def sources_of(op: str, backends: Iterable[str]) -> list[str]:
    """Files and folders, below the root, that a record of these backends of ours depends on."""
    for start, paths in PROGRAMS.items():
        if op.startswith(start):
            return [path for path in paths if (ROOT / path).exists()]
    if op not in OPS:
        return []
    found: set[Path] = set()
    for backend in backends:
        if backend == "triton":
            found |= _imports(ROOT / f"gossamer/kernels/{op}.py")
        elif backend in NATIVE:
            found |= _includes(_definitions(f"{op}_{backend}"), NATIVE[backend])
    return sorted(str(path.relative_to(ROOT)) for path in found)


@cache
def _texts() -> dict[Path, str]:
    folders = (ROOT / "csrc", ROOT / "include")
    return {p: p.read_text() for f in folders for p in sorted(f.rglob("*")) if p.is_file()}


def _definitions(function: str) -> set[Path]:
    """Files other than headers that have the function."""
    return {
        path
        for path, text in _texts().items()
        if path.suffix in (".cu", ".cpp")
        and re.search(rf"^[^/\n]*\b{function}\(", text, re.MULTILINE)
    }


def _includes(start: set[Path], kinds: tuple[str, ...]) -> set[Path]:
    """With all that they include, and what these declare: x.cu and x_*.cu beside x.h."""
    found: set[Path] = set()
    waiting = list(start)
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        for name in INCLUDE.findall(_texts()[path]):
            places = (path.parent / name, ROOT / "csrc" / name, ROOT / "include" / name)
            header = next((place for place in places if place in _texts()), None)
            if header is not None:
                stem = header.name.split(".")[0]
                beside = (p for p in _texts() if p.parent == header.parent)
                waiting += [header, *(p for p in beside if re.match(rf"{stem}(_|\.)", p.name))]
    return {path for path in found if path.suffix in kinds}


def _imports(start: Path) -> set[Path]:
    found: set[Path] = set()
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path not in found and path.is_file():
            found.add(path)
            waiting += [path.parent / f"{name}.py" for name in IMPORT.findall(path.read_text())]
    return found


# ---- changed since -------------------------------------------------------------------------------


@cache
def measured() -> dict[tuple[str, str], list[str]]:
    """(file, revision) of every committed record -> what it depends on."""
    found: dict[tuple[str, str], list[str]] = {}
    for device in devices():
        for path in sorted((FOLDER / "results" / device).glob("*.jsonl")):
            lines = read_lines(path)
            ours = {str(line["backend"]) for line in lines} & {"cpu", "cuda", "triton"}
            kinds = ours or ({"cuda"} if is_gpu(device) else {"cpu"})
            sources = sources_of(lines[0]["op"], kinds)
            for revision in dict.fromkeys(str(line["revision"]) for line in lines):
                found[str(path.relative_to(ROOT)), revision] = sources
    for file, folders in LINES.items():
        revisions = list(dict.fromkeys(str(line["revision"]) for line in read_lines(FOLDER / file)))
        for revision in revisions[-1:] if file in NEWEST else revisions:
            if folders:
                found[f"benchmarks/{file}", revision] = list(folders)
    return found


def history() -> bool:
    """Whether revisions can be looked up: git, and more than the last commit."""
    try:
        return _git("rev-parse", "--is-shallow-repository").stdout.strip() == "false"
    except OSError:
        return False


def older() -> dict[tuple[str, str], str]:
    """(file, revision) of records whose sources have changed since, and how one knows.

    Compares with the files as they are here, committed or not.
    """
    found = {}
    for (file, revision), sources in measured().items():
        commit = revision.removesuffix("-dirty")
        if _git("cat-file", "-e", f"{commit}^{{commit}}").returncode:
            found[file, revision] = "its revision is not in the history"
        elif sources:
            changed = _git("diff", "--name-only", commit, "--", *sources).stdout.split()
            if changed:
                shown = ", ".join(Path(path).name for path in changed[:2])
                more = f" and {len(changed) - 2} more" if len(changed) > 2 else ""
                found[file, revision] = f"{shown}{more}"
    return found


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
