"""docs/ops: one page per op, and every one says what the code says."""

from gossamer.kit.checkout import this_checkout
from gossamer.kit.pages import page_of, pages, signature_and_docstring, stale
from gossamer.ops import OPS


def test_no_page_is_stale():
    assert stale(this_checkout()) == [], "run `python -m gossamer.kit.pages --write`"


def test_every_op_has_a_page_and_a_row():
    made = {str(path): text for path, text in pages(this_checkout()).items()}
    assert sorted(made) == sorted(["docs/ops/README.md", *(f"docs/ops/{n}.md" for n in OPS)])
    assert all(f"]({name}.md)" in made["docs/ops/README.md"] for name in OPS)


def test_links_lead_to_files():
    root = this_checkout()
    for name in OPS:
        for path in page_of(name, root).code.values():
            assert (root / path).is_file()


SOURCE = '''
def f(x: int, y: float = 1.0, *, backend: str | None = None) -> int:
    """Intent.

    More.
    """
'''


def test_signatures_are_short_or_one_argument_a_line():
    text, docstring = signature_and_docstring(SOURCE, "f")
    assert text == "f(x: int, y: float = 1.0, *, backend: str | None = None) -> int"
    assert docstring == "Intent.\n\nMore."
    name = "f" * 60
    text, _ = signature_and_docstring(SOURCE.replace("f(", f"{name}("), name)
    assert text.splitlines()[1:] == [
        "    x: int,",
        "    y: float = 1.0,",
        "    *,",
        "    backend: str | None = None,",
        ") -> int",
    ]
