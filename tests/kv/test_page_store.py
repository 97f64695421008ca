"""PageFolder: a page is there whole or not at all, and the folder has its limit."""

import multiprocessing
import random
from pathlib import Path

import pytest
import torch

from gossamer.kv.page_store import HEADER, PageFolder

BYTES = 1000
EACH = HEADER.size + BYTES


def page(seed: int, size: int = BYTES) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)


def folder_of(path: Path, pages: float = 100) -> PageFolder:
    folder = PageFolder(path, int(pages * EACH))
    folder.open_space("a", "a model")
    return folder


def held(folder: PageFolder, name: str) -> torch.Tensor | None:
    found = torch.zeros(BYTES, dtype=torch.uint8)
    return found if folder.get(name, found) else None


def files(folder: PageFolder) -> list[Path]:
    return sorted(folder.folder.glob("*/*.page"))


def test_what_is_put_is_got_by_any_process(tmp_path):
    first, second = folder_of(tmp_path / "new" / "folder"), folder_of(tmp_path / "new" / "folder")
    assert held(second, "a/1") is None
    first.put("a/1", page(1))
    first.put("a/2", page(2))
    assert second.touch(["a/1", "a/3", "a/2", "b/1"]) == {"a/1", "a/2"}
    assert torch.equal(held(second, "a/1"), page(1))
    second.put("a/1", page(1))
    assert torch.equal(held(first, "a/1"), page(1))
    assert len(files(first)) == 2
    assert (tmp_path / "new" / "folder").stat().st_mode & 0o077 == 0  # others could read prompts


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        lambda content: b"",
        lambda content: content[: HEADER.size],
        lambda content: content + b"x",
        lambda content: bytes(len(content)),  # what a disk may hold after the power fails
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: b"gossKV99" + content[8:],
        lambda content: random.Random(1).randbytes(len(content)),
    ],
    ids=["cut", "empty", "header", "longer", "zeros", "bit", "version", "garbage"],
)
def test_damaged_files_are_not_used_and_make_way(tmp_path, damage):
    folder = folder_of(tmp_path)
    folder.put("a/1", page(1))
    [file] = files(folder)
    file.write_bytes(damage(file.read_bytes()))
    assert held(folder, "a/1") is None
    assert folder.touch(["a/1"]) == set()
    folder.put("a/1", page(1))
    assert torch.equal(held(folder, "a/1"), page(1))


def test_a_page_under_the_name_of_another_is_not_used(tmp_path):
    folder = folder_of(tmp_path)
    folder.put("a/1", page(1))
    files(folder)[0].rename(folder.folder / "a" / "2.page")
    assert held(folder, "a/2") is None


def test_a_page_of_another_size_is_not_used(tmp_path):
    folder = folder_of(tmp_path)
    folder.put("a/1", page(1, BYTES + 8))
    assert held(folder, "a/1") is None


def test_the_folder_has_its_limit_and_forgets_what_was_not_used(tmp_path):
    limit = 40
    folder = folder_of(tmp_path, limit)
    for number in range(limit // 2):
        folder.put(f"a/{number}", page(number))
    used = [f"a/{number}" for number in range(5)]
    for number in range(limit // 2, 4 * limit):
        assert folder.touch(used) == set(used)
        folder.put(f"a/{number}", page(number))
        assert sum(file.stat().st_size for file in files(folder)) <= folder.limit
    assert folder.touch(["a/10"]) == set()
    left = sorted(int(file.stem) for file in files(folder))
    assert len(left) > limit * 3 // 4
    assert left == [*range(5), *range(4 * limit - len(left) + 5, 4 * limit)]


def test_of_pages_that_are_touched_together_the_first_stays(tmp_path):
    folder = folder_of(tmp_path, 16)
    names = [f"a/{number}" for number in range(8)]
    for name in reversed(names):
        folder.put(name, page(0))
    folder.touch(names)
    for number in range(100, 112):
        folder.put(f"a/{number}", page(number))
    found = folder.touch(names)
    assert 0 < len(found) < 8
    assert found == set(names[: len(found)])


def test_another_process_may_have_a_smaller_limit(tmp_path):
    large, small = folder_of(tmp_path, 100), folder_of(tmp_path, 10)
    for number in range(50):
        large.put(f"a/{number}", page(number))
    for number in range(50, 60):
        small.put(f"a/{number}", page(number))
    assert sum(file.stat().st_size for file in files(small)) <= 11 * EACH


def test_a_page_that_is_larger_than_the_folder_is_not_kept(tmp_path):
    folder = folder_of(tmp_path, 0.5)
    folder.put("a/1", page(1))
    assert files(folder) == []


def test_what_killed_writers_left_is_deleted_in_its_turn(tmp_path):
    folder = folder_of(tmp_path, 20)
    left = tmp_path / "a" / "1.page.123-456.tmp"
    left.write_bytes(bytes(EACH))
    own = tmp_path / "a" / "notes.md"
    own.write_text("not a page")
    for number in range(40):
        folder.put(f"a/{number}", page(number))
    assert not left.exists()
    assert own.exists()


def test_what_other_spaces_are_about(tmp_path):
    folder = PageFolder(tmp_path, 1000)
    assert folder.open_space("a", "one model") == []
    assert folder.open_space("b", "another") == ["one model"]
    assert folder.open_space("b", "another") == []  # it is known by now


def test_a_folder_that_is_gone_is_an_error_of_put_alone(tmp_path):
    folder = folder_of(tmp_path / "pages")
    folder.put("a/1", page(1))
    files(folder)[0].unlink()
    (tmp_path / "pages" / "a" / "about.txt").unlink()
    (tmp_path / "pages" / "a").rmdir()
    assert held(folder, "a/1") is None
    with pytest.raises(OSError, match="No such file"):
        folder.put("a/1", page(1))


def test_what_cannot_be_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file cannot be a folder of pages: File exists"):
        PageFolder(tmp_path / "file", 1000)
    with pytest.raises(ValueError, match="cannot be a folder of pages"):
        PageFolder("/proc/none", 1000)


def put_and_get(path: Path, seed: int) -> int:
    """Names that all processes use; whatever is there is right."""
    folder, rng, found = folder_of(path, 30), random.Random(seed), 0
    for _ in range(400):
        number = rng.randrange(50)
        if rng.random() < 0.5:
            folder.put(f"a/{number}", page(number))
        else:
            got = held(folder, f"a/{number}")
            assert got is None or torch.equal(got, page(number))
            found += got is not None
    return found


def test_processes_at_once(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.starmap(put_and_get, [(tmp_path, 1), (tmp_path, 2)])
    assert min(found) > 20
    assert len(files(folder_of(tmp_path))) <= 30
    assert [*tmp_path.glob("*/*.tmp")] == []
