"""A new op from templates: its files, and its lines in the lists. All of it, or nothing."""

import builtins
import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template

from gossamer.kit import lists
from gossamer.kit.checkout import check_checkout
from gossamer.kit.pages import FOLDER, INDEX, Page, signature_and_docstring

SCHEMA = "(Tensor x, Tensor y, float scale=1.0) -> Tensor"
LONGEST = 32  # lines with the name twice still fit into 100 columns

# Those that are no words of Python.
_CPP = """
alignas alignof and_eq asm auto bitand bitor case catch char char8_t char16_t char32_t compl concept
const consteval constexpr constinit const_cast co_await co_return co_yield decltype default delete
do double dynamic_cast enum explicit export extern friend goto inline long mutable namespace new
noexcept not_eq nullptr operator or_eq private protected public register reinterpret_cast requires
short signed sizeof static static_assert static_cast struct switch template this thread_local throw
typedef typeid typename union unsigned using virtual void volatile wchar_t xor xor_eq
"""
# What the kernels of every op have in scope, and what torch keeps for itself.
_TAKEN = """
avx2 avx512 cpu cpu_isa cuda elementwise generic gossamer isa load load_partial main math name splat
store store_partial torch triton
"""


def check_op_name(name: str) -> str:
    """The name itself. ValueError for what is not lower case, or means something already."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or "__" in name or name.endswith("_"):
        raise ValueError(
            f"the name is {name!r}; must be lower case letters, digits and single underscores, "
            "a letter first"
        )
    if len(name) > LONGEST:
        raise ValueError(f"the name has {len(name)} letters; must have at most {LONGEST}")
    if keyword.iskeyword(name) or keyword.issoftkeyword(name) or hasattr(builtins, name):
        raise ValueError(f"{name!r} is a word of Python; must be another name")
    if name in _CPP.split():
        raise ValueError(f"{name!r} is a word of C++; must be another name")
    if name in _TAKEN.split():
        raise ValueError(f"{name!r} is used by the kernels of all ops; must be another name")
    return name


def check_family(family: str) -> str:
    """A folder of csrc, there or not yet. ValueError for what is not a plain name."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", family) or len(family) > LONGEST:
        raise ValueError(
            f"the family is {family!r}; must be lower case letters, digits and underscores"
        )
    return family


def camel(name: str) -> str:
    """scaled_add: ScaledAdd."""
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


@dataclass(frozen=True)
class Change:
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


def new_op(name: str, family: str = "elementwise", root: Path = Path()) -> Change:
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
    return Change(root, created, _edits(name, family, root, _page(name, family, created)))


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
        "benchmark.py": Path(f"benchmarks/suites/{name}.py"),
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
        "benchmarks/suites/all.py": lambda text: lists.suites(text, name),
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
