"""docs/design.md is true: every name on the way of a token is where the page says it is."""

import importlib
import re
from functools import reduce
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/design.md").read_text()
HOP = re.compile(r"^\| (\d+) \| `([^`]+)` \| (?:`([^`]+)`)? ?\|", re.MULTILINE)


def hops() -> list[tuple[int, str, str]]:
    start = PAGE.index("## The way of a token")
    return [(int(n), file, name) for n, file, name in HOP.findall(PAGE, start)]


def test_the_way_of_a_token_is_short():
    numbers = [number for number, *_ in hops()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 15 < len(numbers) <= 25
    assert len({file for _, file, _ in hops()}) <= 16


def test_every_name_on_it_is_there():
    for _, file, name in hops():
        assert (ROOT / file).is_file(), file
        if file.endswith(".py"):
            module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
            found = reduce(getattr, name.split("."), module)
            assert found.__module__ == module.__name__, name  # defined there, not imported


def test_each_hop_names_the_next():
    """A file calls the name of the next hop, or returns to the one that it was called from."""
    files = [(file, name) for _, file, name in hops()]
    seen = set()
    for (file, _), (after, name) in pairwise(files):
        seen.add(file)
        if after.endswith(".py") and after not in seen:
            word = name.split(".")[-1]
            callers = [ROOT / place for place in seen]
            assert any(re.search(rf"\b{word}\(", path.read_text()) for path in callers), name


def test_paths_and_modules_of_the_page_exist():
    for path in re.findall(r"`((?:gossamer|csrc|tests|benchmarks|docs)/[\w/.-]+?)`", PAGE):
        if Path(path).stem not in ("x", "test_x"):  # of any op
            assert (ROOT / path).exists(), path
