"""The map of the house (docs/design.md): rooms import only rooms below them."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import gossamer

PACKAGE = Path(gossamer.__file__).parent

# From the ground up. A room may import from itself and from the floors below it.
FLOORS = [
    {"_version"},
    {"native", "kernels", "plotting", "profiling"},
    {"ops"},
    {"bench", "masks"},
    {"kit"},
    {"attention", "layers"},
    {"fusion"},
    {"kv"},
    {"diagnosis", "models"},
    {"engine"},
    {"integrations", "workloads"},
    {"evaluation", "planning", "server"},
    {"batch", "cluster"},
    {"cli"},
]

FOR_RAY = {
    "gossamer.batch.on_ray",
    *(f"gossamer.cluster.{name}" for name in ("app", "link", "replica", "router", "run")),
    "gossamer.engine.launch_ray",
}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "gossamer":
            rooms |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gossamer."):
            rooms.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names if a.name.startswith("gossamer.")]
            rooms |= {name.split(".")[1] for name in names}
    return rooms


def test_every_room_has_a_floor():
    rooms = {room_of(p) for p in PACKAGE.rglob("*.py")} - {"__init__"}
    assert rooms == set().union(*FLOORS)


def test_rooms_import_only_from_below():
    height = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
    for path in PACKAGE.rglob("*.py"):
        room = room_of(path)
        if room == "__init__":
            continue
        for other in imported_rooms(path) - {room}:
            assert height[other] < height[room], f"{path} imports gossamer.{other}"


def imported_modules(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names that statements import, and those of `from X import Y` with and without the last."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_extra":
            yield from (arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant))


def test_only_what_is_for_ray_imports_it():
    """It is an extra: others name what needs it only where they are asked to run on it."""
    trees = {path: ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
    users = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path, tree in trees.items()
        if any(name.split(".")[0] == "ray" for name in imported_modules(ast.walk(tree)))
    }
    assert users == FOR_RAY
    loads_ray = FOR_RAY - {"gossamer.engine.launch_ray"}  # which imports it in a function
    for path, tree in trees.items():
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        if name not in FOR_RAY:
            found = loads_ray & set(imported_modules(tree.body))
            assert not found, f"importing {name} imports {found}, which need ray"


def test_one_class_writes_pages():
    """The engine and the cache of transformers share one paged cache: only stores pack rows."""
    packs = {"kv_pack", "kv_append"}
    writers, caches = set(), set()
    for path in PACKAGE.rglob("*.py"):
        if room_of(path) in ("ops", "kernels"):
            continue
        place = str(path.relative_to(PACKAGE))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name in packs:
                    writers.add(place)
                if name == "allocate":
                    name = getattr(getattr(node.func, "value", None), "id", "")
                if name in ("decode_attention", "BlockStore"):
                    caches.add(place)
    assert writers == {"kv/store.py"}
    # The others pack and unpack rows to see what that costs; they hold no sequence.
    looks = {"evaluation/policies/blocks.py", "kv/round_trip.py"}
    assert caches == {"kv/paged_cache.py"} | looks


def test_every_op_has_its_four_files():
    """Same noun, same place: op, kernel, test and benchmark are found by the op's name."""
    root = Path(__file__).parent.parent
    for name in gossamer.ops.OPS:
        for place in (f"tests/ops/test_{name}.py", f"benchmarks/suites/{name}.py"):
            assert (root / place).is_file()
        assert (PACKAGE / f"ops/{name}.py").is_file()
        if "triton" in gossamer.ops.OPS[name].backends:
            assert (PACKAGE / f"kernels/{name}.py").is_file()
