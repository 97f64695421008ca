"""Lists in source files, and how a line gets into its alphabetical place there.

Every function takes the text of a file and returns it with the new entry; ValueError where the list
is not found.
"""

import re
from collections.abc import Callable

Edit = Callable[[str], str]


def order(text: str) -> list[tuple[str, int]]:
    """A key for sorting as ruff sorts imports: numbers by value."""
    words = re.split(r"(\d+)", text)  # text and digits in turn
    return [("", int(word)) if i % 2 else (word, 0) for i, word in enumerate(words)]


def insert(text: str, new: str, key: str, pattern: str, *, what: str) -> str:
    """`new` before the first match of `pattern` that sorts after `key`, else after the last one.

    pattern: a whole entry with its end of line; its group 1 is what it is sorted by.
    """
    entries = list(re.finditer(pattern, text, re.MULTILINE))
    if not entries:
        raise ValueError(f"found no {what}")
    later = [m for m in entries if order(m.group(1)) > order(key)]
    at = later[0].start() if later else entries[-1].end()
    return text[:at] + new + text[at:]


def within(text: str, start: str, end: str, edit: Edit, *, what: str) -> str:
    """`edit` of what stands between `start` and the next `end`."""
    before, opening, rest = text.partition(start)
    inside, closing, after = rest.partition(end)
    if not opening or not closing:
        raise ValueError(f"found no {what}")
    return before + opening + edit(inside) + closing + after


def python_exports(text: str, name: str) -> str:
    """gossamer/ops/__init__.py: an import, and a line of __all__."""
    text = insert(
        text,
        f"from gossamer.ops.{name} import {name}\n",
        name,
        r"^from gossamer\.ops\.(\w+) import .*\n",
        what="imports from gossamer.ops",
    )
    line = f'    "{name}",\n'
    return within(
        text,
        "__all__ = [\n",
        "]\n",
        # Constants and classes come first there.
        lambda names: insert(names, line, name, r'^    "([a-z]\w*)",\n', what="names"),
        what="__all__",
    )


def suites(text: str, name: str) -> str:
    """benchmarks/all.py: the import, and the suite."""
    text = within(
        text,
        "from benchmarks import (\n",
        ")\n",
        lambda names: insert(names, f"    {name},\n", name, r"^    (\w+),\n", what="benchmarks"),
        what="list of benchmarks",
    )
    return within(
        text,
        "SUITES = (\n",
        ")\n",
        lambda names: insert(
            names, f"    {name}.SUITE,\n", name, r"^    (\w+)\.SUITE,\n", what="suites"
        ),
        what="list of suites",
    )


def bindings(text: str, name: str, family: str, schema: str) -> str:
    """csrc/bindings.cpp: the header, the schema and the CPU kernel."""
    text = insert(
        text,
        f'#include "{family}/{name}.h"\n',
        f"{family}/{name}.h",
        r'^#include "([^"]+)"\n',
        what="#include lines",
    )
    text = within(
        text,
        "STABLE_TORCH_LIBRARY_FRAGMENT(gossamer, m) {\n",
        "\n}\n",
        lambda lines: insert(
            lines + "\n", f'  m.def("{name}{schema}");\n', name, DEF, what="schemas"
        )[:-1],
        what="schemas",
    )
    return within(
        text,
        "STABLE_TORCH_LIBRARY_IMPL(gossamer, CPU, m) {\n",
        "\n}\n",
        lambda lines: insert(
            lines + "\n",
            f'  m.impl("{name}", TORCH_BOX(&gossamer::{name}_cpu));\n',
            name,
            r'^  m\.impl\("(\w+)", .*\n',
            what="CPU kernels",
        )[:-1],
        what="CPU kernels",
    )


# One line, or several strings that are joined.
DEF = r'^  m\.def\(\s*"(\w+)\((?:.|\n)*?"\);\n'


def cmake(text: str, name: str, family: str) -> str:
    """CMakeLists.txt: the torch function and the kernel."""
    for start, suffix in (
        ("gossamer_library(_C\n", ".cpp"),
        ("set(gossamer_cpu_kernels\n", ".kernel.cpp"),
    ):
        path = f"csrc/{family}/{name}{suffix}"
        text = within(
            text,
            start,
            ")\n",
            lambda paths, path=path: insert(  # type: ignore[misc]
                paths + "\n", f"  {path}\n", path, r"^  (csrc/\S+)\n", what="sources"
            )[:-1],
            what=start.strip(),
        )
    return text
