"""What kv_page_copy means."""

import re

import pytest
import torch

from gossamer.ops import OPS, kv_page_copy
from tests.ops.spec import runs

RUNS = runs("kv_page_copy")
PAGES = torch.zeros(6, 2, 8)


def _args(**changes):
    args = {"pages": PAGES, "source": torch.tensor([4, 0]), "target": torch.tensor([1, 5])}
    assert set(changes) <= set(args)
    return tuple((args | changes).values())


NAME = "kv_page_copy"
BAD_CALLS = [
    (_args(pages=None), TypeError, f"{NAME}: pages is NoneType; must be a torch.Tensor"),
    (
        _args(pages=torch.zeros(6)),
        ValueError,
        f"{NAME}: pages has 1 dimensions; must have at least 2",
    ),
    (_args(source=[4, 0]), TypeError, f"{NAME}: source is list; must be a torch.Tensor"),
    (
        _args(target=torch.tensor([1, 5], dtype=torch.int32)),
        TypeError,
        f"{NAME}: target has dtype int32; must be int64",
    ),
    (
        _args(source=torch.tensor([[4, 0]])),
        ValueError,
        f"{NAME}: source has 2 dimensions; must have 1",
    ),
    (
        _args(target=torch.tensor([1])),
        ValueError,
        f"{NAME}: target has 1 pages; must be 2, as source",
    ),
]
BAD_VALUES = [  # and strides and lists elsewhere, which do not survive a move to a GPU
    (
        _args(pages=torch.zeros(6, 8, 2).mT),
        ValueError,
        f"{NAME}: pages of shape [6, 2, 8] has strides [16, 1, 2]; "
        "each page must be contiguous and they must lie apart",
    ),
    (
        _args(pages=torch.zeros(1, 2, 8).expand(6, 2, 8)),
        ValueError,
        f"{NAME}: pages of shape [6, 2, 8] has strides [0, 8, 1]; "
        "each page must be contiguous and they must lie apart",
    ),
    (
        _args(source=torch.zeros(2, dtype=torch.int64, device="meta")),
        ValueError,
        f"{NAME}: source is on meta; must be on cpu",
    ),
    (
        _args(source=torch.tensor([4, 6])),
        ValueError,
        f"{NAME}: a page of source is 6; must be 0 to 5",
    ),
    (
        _args(target=torch.tensor([-1, 5])),
        ValueError,
        f"{NAME}: a page of target is -1; must be 0 to 5",
    ),
    (
        _args(target=torch.tensor([5, 5])),
        ValueError,
        f"{NAME}: page 5 is a target twice; must be one once",
    ),
    (
        _args(target=torch.tensor([1, 4])),
        ValueError,
        f"{NAME}: page 4 is a source and a target; must be one of them",
    ),
    (
        _args(pages=torch.zeros(0, 2, 8)),
        ValueError,
        f"{NAME}: a page of source is 4; must be none, as there are no pages",
    ),
]


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32], ids=str)
def test_copies_pages_and_nothing_else(op, backend, device, dtype):
    """Pages of all sizes, of a pool that is part of something larger, also at odd addresses."""
    for page in ((1,), (3, 5), (2, 8, 16), (300, 301)):
        memory = torch.randint(0, 256, (9, 2, *page), device=device).to(dtype)
        odd = memory.flatten()[1:17].view(8, 2)
        for pages in (memory[:, 0], memory[1:, 1], odd):
            count = pages.shape[0]
            order = torch.randperm(count)
            target, source = order[:3], order[3:][torch.randint(0, count - 3, (3,))]
            want = memory.clone()
            view = want.as_strided(pages.shape, pages.stride(), pages.storage_offset())
            view[target.to(device)] = view[source.to(device)]
            kv_page_copy(pages, source, target, backend=backend)
            assert torch.equal(memory, want)


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_nothing_to_copy(op, backend, device):
    none = torch.zeros(0, dtype=torch.int64)
    for shape in ((0, 4), (3, 0), (3, 4)):
        kv_page_copy(torch.zeros(shape, device=device), none, none, backend=backend)
    kv_page_copy(torch.zeros(3, 0, device=device), torch.tensor([0]), torch.tensor([2]))


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_more_pages_than_a_launch_takes(op, backend, device):
    pages = torch.randn(1500, 24, device=device)
    order = torch.randperm(3000)
    order = order[order < 1500]
    source, target = order[:700], order[700:1400]
    want = pages.clone()
    want[target.to(device)] = pages[source.to(device)]
    kv_page_copy(pages, source, target, backend=backend)
    assert torch.equal(pages, want)


@pytest.mark.parametrize("backend", OPS[NAME].available("cpu"))
def test_bad_lists_write_nothing(backend):
    for args, _, message in BAD_VALUES:
        if "strides" in message or "meta" in message:
            continue
        pages = torch.randn(args[0].shape)
        before = pages.clone()
        with pytest.raises(ValueError, match="page"):
            kv_page_copy(pages, *args[1:], backend=backend)
        assert torch.equal(pages, before)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["reference", "cuda"])
def test_lists_are_checked_on_the_host_for_a_gpu_too(backend):
    for args, _, message in BAD_VALUES[3:]:
        with pytest.raises(ValueError, match=re.escape(message)):
            kv_page_copy(args[0].cuda(), *args[1:], backend=backend)
