"""`python -m gossamer.kit.pages --write`: docs/ops, one page per op, made from its docstring.

A page has what the code says (signature, docstring, backends and their limits) and what the
committed results say (speed), so it is never written by hand; a test compares.
"""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import gossamer.ops
from gossamer.bench.record import read_records
from gossamer.kit.checkout import this_checkout
from gossamer.kit.speed import recorded, summary
from gossamer.ops import OPS

FOLDER = Path("docs/ops")
INDEX = FOLDER / "README.md"
INTRODUCTION = """\
# Operators

One page per op, made from its docstring and from the committed results by
`python -m gossamer.kit.pages --write` (`make report` runs it). How to write one:
[custom kernels](../custom-kernels.md).

| op | meaning | backends |
| --- | --- | --- |
"""


# What a docstring tells besides its arguments, and how one sees that it does.
TOLD = {
    "shapes": r"\[|shape",
    "dtypes": r"float|dtype|int8|floating",
    "errors (Raises)": r"\bRaises\b",
}


@dataclass(frozen=True)
class Page:
    """What is told about an op. code: the file of each backend that it has. callers: files."""

    name: str
    signature: str
    docstring: str
    code: Mapping[str, str]
    tuned: str | None = None
    speeds: tuple[str, ...] = ()
    callers: tuple[str, ...] = ()

    @property
    def intent(self) -> str:
        """The docstring's first sentence."""
        return " ".join(self.docstring.split("\n\n")[0].split())

    @property
    def row(self) -> str:
        """Its line of the index."""
        meaning = self.intent.replace("|", "\\|")
        return f"| [`{self.name}`]({self.name}.md) | {meaning} | {', '.join(self.code)} |\n"

    def render(self) -> str:
        """The page."""
        return f"""\
<!-- made by `python -m gossamer.kit.pages --write` -->
# {self.name}

```python
{self.signature}
```

```text
{self.docstring}
```

{self._callers()}

## Backends

{self._backends()}
## Speed

{self._speed()}
"""

    def _callers(self) -> str:
        if not self.callers:
            return "A library operator: for your own code; no other part of Gossamer calls it yet."
        return f"Used by {', '.join(map(_link, self.callers))}."

    def _backends(self) -> str:
        notes = {
            "reference": "plain torch, any device; what the others are tested against",
            "cpu": "C++ for CPU tensors, vectorised for AVX2 and AVX-512",
            "triton": "Triton for CUDA tensors; CPU tensors in its interpreter, for tests",
            "cuda": f"CUDA C++; takes {self.tuned}" if self.tuned else "CUDA C++ for CUDA tensors",
        }
        rows = [f"| `{b}` | {notes[b]} | {_link(path)} |\n" for b, path in self.code.items()]
        return "| backend | runs | code |\n| --- | --- | --- |\n" + "".join(rows)

    def _speed(self) -> str:
        lines = [f"- {line}" for line in self.speeds or ("not measured yet",)]
        sources = (f"benchmarks/suites/{self.name}.py", f"tests/ops/test_{self.name}.py")
        lines.append("- benchmark and tests: " + ", ".join(map(_link, sources)))
        return "\n".join(lines)


def _link(path: str) -> str:
    return f"[{path}](../../{path})"


def signature_and_docstring(source: str, name: str) -> tuple[str, str]:
    """Of the function `name` in Python source; the signature as one would write it."""
    functions = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)]
    found = next(f for f in functions if f.name == name)
    arguments = list(_arguments(found.args))
    returns = ast.unparse(found.returns) if found.returns else "None"
    text = f"{name}({', '.join(arguments)}) -> {returns}"
    if len(text) > 100:
        text = f"{name}(\n" + "".join(f"    {a},\n" for a in arguments) + f") -> {returns}"
    return text, ast.get_docstring(found) or ""


def _arguments(spec: ast.arguments) -> Iterator[str]:
    """Each with its annotation and default, `*` among them."""
    required = [None] * (len(spec.args) - len(spec.defaults))
    yield from map(_argument, spec.args, (*required, *spec.defaults))
    if spec.kwonlyargs:
        yield "*"
    yield from map(_argument, spec.kwonlyargs, spec.kw_defaults)


def _argument(arg: ast.arg, default: ast.expr | None) -> str:
    text = ast.unparse(arg)
    return text if default is None else f"{text} = {ast.unparse(default)}"


def page_of(name: str, root: Path) -> Page:
    """The page of a shipped op."""
    function = getattr(gossamer.ops, name)
    source = Path(inspect.getfile(inspect.unwrap(function))).read_text()
    signature, docstring = signature_and_docstring(source, name)
    op = OPS[name]
    return Page(
        name=name,
        signature=signature,
        docstring=docstring,
        code={backend: _code(name, backend, root) for backend in op.backends},
        tuned=op.tuned,
        speeds=tuple(_speeds(name, root)),
        callers=tuple(_callers(name, root)),
    )


def _callers(name: str, root: Path) -> Iterator[str]:
    """Files of the package, but for ops themselves, that import the op or look it up by name."""
    for path in sorted((root / "gossamer").rglob("*.py")):
        place, text = path.relative_to(root), path.read_text()
        uses = re.findall(r"^from gossamer\.ops import (?:\([^)]*\)|.*)$", text, re.MULTILINE)
        uses += re.findall(r'OPS\["\w+"\]', text)
        inside = place.parts[1] in ("ops", "kernels", "kit")
        if not inside and any(re.search(rf"\b{name}\b", use) for use in uses):
            yield str(place)


def _code(name: str, backend: str, root: Path) -> str:
    """Where a backend's code is; the bindings where it shares a file with another op."""
    places = {"reference": f"gossamer/ops/{name}.py", "triton": f"gossamer/kernels/{name}.py"}
    if backend in places:
        return places[backend]
    suffix = ".cpp" if backend == "cpu" else ".cu"
    found = sorted(p.relative_to(root) for p in (root / "csrc").rglob(f"{name}{suffix}"))
    shared = "csrc/bindings.cpp" if backend == "cpu" else "csrc/bindings_cuda.cpp"
    return str(found[0]) if found else shared


def _speeds(name: str, root: Path) -> list[str]:
    lines = []
    for path in sorted((root / "benchmarks/results").glob(f"*/{name}.jsonl")):
        records = read_records(path)
        link = f"[all points](../../{path.relative_to(root)})"
        told = summary(recorded(path))
        lines.append(f"{records[0].device}: {told} ({link})")
    return lines


def pages(root: Path) -> dict[Path, str]:
    """Every page by its path below the root."""
    made = [page_of(name, root) for name in sorted(OPS)]
    found = {FOLDER / f"{page.name}.md": page.render() for page in made}
    return found | {INDEX: INTRODUCTION + "".join(page.row for page in made)}


def stale(root: Path) -> list[Path]:
    """Pages that differ from what they should be, are missing, or are of no op."""
    wanted = pages(root)
    there = {p.relative_to(root) for p in (root / FOLDER).glob("*.md")}
    differ = [p for p in wanted if p not in there or (root / p).read_text() != wanted[p]]
    return sorted([*differ, *(there - set(wanted))])


def undocumented(name: str, root: Path) -> list[str]:
    """What is missing; [] where nothing is."""
    page = page_of(name, root)
    missing = docstring_gaps(page.docstring, arguments(page.signature), bool(OPS[name].mutates))
    path = root / FOLDER / f"{name}.md"
    if not path.is_file():
        missing.append(f"no {FOLDER}/{name}.md")
    elif path.read_text() != page.render():
        missing.append(f"{FOLDER}/{name}.md is stale: python -m gossamer.kit.pages --write")
    index = root / INDEX
    if not index.is_file() or f"[`{name}`]({name}.md)" not in index.read_text():
        missing.append(f"not in {INDEX}")
    return missing


def docstring_gaps(docstring: str, names: Sequence[str], mutates: bool = False) -> list[str]:
    """What a docstring does not tell about a function with these arguments."""
    if not docstring:
        return ["no docstring"]
    silent = [name for name in names if not re.search(rf"\b{name}\b", docstring)]
    gaps = [f"docstring without {', '.join(silent)}"] if silent else []
    told = dict(TOLD)
    if not mutates:
        told["the result"] = r"\bReturns\b|^Rows\b|\bresults?\b"
    return gaps + [
        f"docstring without {what}"
        for what, pattern in told.items()
        if not re.search(pattern, docstring)
    ]


def arguments(signature: str) -> list[str]:
    """The names in a signature that is written out, but for `backend`."""
    inside = signature.partition("(")[2].rpartition(") ->")[0]
    return [name for name in re.findall(r"(\w+):", inside) if name != "backend"]


def main(
    write: Annotated[bool, typer.Option("--write", help="write them; default: compare")] = False,
) -> None:
    """Exit code 1 when pages are stale and --write is not given."""
    root = this_checkout()
    old = stale(root)
    for path in old:
        typer.echo(f"{'wrote' if write else 'stale:'} {path}")
    if not write:
        raise typer.Exit(1 if old else 0)
    wanted = pages(root)
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    for path in old:
        if path in wanted:
            (root / path).write_text(wanted[path])
        else:
            (root / path).unlink()


if __name__ == "__main__":
    typer.run(main)
