"""A new op from templates: its files, and its lines in the lists. All of it, or nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template

from gossamer.kit import lists
from gossamer.kit.checkout import check_checkout
from gossamer.kit.names import camel, check_family, check_op_name
from gossamer.kit.pages import FOLDER, INDEX, Page, signature_and_docstring

SCHEMA = "(Tensor x, Tensor y, float scale=1.0) -> Tensor"


@dataclass(frozen=True)
class Plan:
    """What a new op changes: paths below the root and their whole text."""

    root: Path
    created: Mapping[Path, str]
    edited: Mapping[Path, str]

    def apply(self) -> None:
        """Write it. Where that fails, everything is put back as it was."""
        before = {path: (self.root / path).read_text() for path in self.edited}
        folders = _missing_folders(self.root / path for path in self.created)
        try:
            for path, text in {**self.created, **self.edited}.items():
                target = self.root / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
        except BaseException:
            for path in self.created:
                (self.root / path).unlink(missing_ok=True)
            for folder in folders:
                if folder.is_dir():
                    folder.rmdir()
            for path, text in before.items():
                (self.root / path).write_text(text)
            raise


def _missing_folders(paths: Iterable[Path]) -> list[Path]:
    """Folders that have to be made for these files, the deepest first."""
    found = {p for path in paths for p in path.parents if not p.exists()}
    return sorted(found, key=lambda p: -len(p.parts))


def plan(name: str, family: str = "elementwise", root: Path = Path()) -> Plan:
    """The files and edits of a new op.

    Raises ValueError for a bad or a known name, a root that is no checkout, a file that is there
    already, a list that is not found.
    """
    check_op_name(name)
    check_family(family)
    check_checkout(root)
    created = _files(name, family)
    taken = sorted(str(path) for path in created if (root / path).exists())
    if taken or f'"{name}(' in (root / "csrc/bindings.cpp").read_text():
        where = f" ({', '.join(taken)})" if taken else ""
        raise ValueError(f"there is an op {name!r}{where}; must be a new name")
    return Plan(root, created, _edits(name, family, root, _page(name, family, created)))


def _files(name: str, family: str) -> dict[Path, str]:
    source = Path("csrc", family)
    places = {
        "op.py": Path(f"gossamer/ops/{name}.py"),
        "kernel.py": Path(f"gossamer/kernels/{name}.py"),
        "op.h": source / f"{name}.h",
        "op.cpp": source / f"{name}.cpp",
        "op.kernel.h": source / f"{name}.kernel.h",
        "op.kernel.cpp": source / f"{name}.kernel.cpp",
        "test_op.py": Path(f"tests/ops/test_{name}.py"),
        "benchmark.py": Path(f"benchmarks/{name}.py"),
    }
    struct = f"{camel(name)}Work"
    values = {"name": name, "struct": struct, "kernel_declaration": _declaration(name, struct)}
    found = {path: _template(kind).substitute(values) for kind, path in places.items()}
    return found | {FOLDER / f"{name}.md": _page(name, family, found).render()}


def _template(kind: str) -> Template:
    file = resources.files("gossamer.kit") / "templates" / f"{kind}.tmpl"
    return Template(file.read_text(encoding="utf-8"))


def _page(name: str, family: str, files: Mapping[Path, str]) -> Page:
    op = Path(f"gossamer/ops/{name}.py")
    signature, docstring = signature_and_docstring(files[op], name)
    code = {
        "reference": str(op),
        "cpu": f"csrc/{family}/{name}.cpp",
        "triton": f"gossamer/kernels/{name}.py",
    }
    return Page(name, signature, docstring, code)


def _declaration(name: str, struct: str) -> str:
    """The kernel's declaration, broken as clang-format breaks it at 120 columns."""
    head = "GOSSAMER_DECLARE_CPU_KERNEL("
    lines, line = [], head
    for part in ("void,", f"{name},", f"const {struct}& work,", "int64_t begin,", "int64_t end)"):
        extended = line + part if line.endswith("(") else f"{line} {part}"
        if len(extended) <= 120:
            line = extended
        else:
            lines.append(line)
            line = " " * len(head) + part
    return "\n".join([*lines, line])


def _edits(name: str, family: str, root: Path, page: Page) -> dict[Path, str]:
    wanted: dict[str, lists.Edit] = {
        "gossamer/ops/__init__.py": lambda text: lists.python_exports(text, name),
        "csrc/bindings.cpp": lambda text: lists.bindings(text, name, family, SCHEMA),
        "CMakeLists.txt": lambda text: lists.cmake(text, name, family),
        "benchmarks/all.py": lambda text: lists.suites(text, name),
        str(INDEX): lambda text: lists.insert(
            text, page.row, name, r"^\| \[`(\w+)`\].*\n", what="rows of operators"
        ),
    }
    found = {}
    for path, edit in wanted.items():
        try:
            found[Path(path)] = edit((root / path).read_text())
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} cannot be edited: {error}") from None
    return found
