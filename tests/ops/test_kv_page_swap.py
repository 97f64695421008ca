"""What kv_page_swap means."""

import re

import pytest
import torch

from gossamer.ops import kv_page_swap
from tests.ops.spec import runs

RUNS = runs("kv_page_swap")
NAME = "kv_page_swap"


def _args(**changes):
    args = {
        "source_pages": torch.zeros(6, 2, 8),
        "target_pages": torch.zeros(4, 2, 8),
        "source": torch.tensor([4, 0]),
        "target": torch.tensor([1, 3]),
    }
    assert set(changes) <= set(args)
    return tuple((args | changes).values())


POOL = torch.zeros(6, 2, 8)
BAD_CALLS = [
    (
        _args(source_pages=None),
        TypeError,
        f"{NAME}: source_pages is NoneType; must be a torch.Tensor",
    ),
    (
        _args(target_pages=torch.zeros(4)),
        ValueError,
        f"{NAME}: target_pages has 1 dimensions; must have at least 2",
    ),
    (
        _args(target_pages=torch.zeros(4, 2, 8).half()),
        TypeError,
        f"{NAME}: target_pages has dtype float16; must be float32, the dtype of source_pages",
    ),
    (
        _args(target_pages=torch.zeros(4, 8, 2)),
        ValueError,
        f"{NAME}: target_pages has pages of shape [8, 2]; must be [2, 8], as source_pages",
    ),
    (_args(source=4), TypeError, f"{NAME}: source is int; must be a torch.Tensor"),
    (
        _args(target=torch.tensor([1.0, 3.0])),
        TypeError,
        f"{NAME}: target has dtype float32; must be int64",
    ),
    (
        _args(source=torch.tensor([4, 0, 1])),
        ValueError,
        f"{NAME}: target has 2 pages; must be 3, as source",
    ),
]
BAD_VALUES = [  # and strides and shared memory, which do not survive a move to a GPU
    (
        _args(source_pages=torch.zeros(6, 8, 2).mT),
        ValueError,
        f"{NAME}: source_pages of shape [6, 2, 8] has strides [16, 1, 2]; "
        "each page must be contiguous and they must lie apart",
    ),
    (
        _args(target=torch.zeros(2, dtype=torch.int64, device="meta")),
        ValueError,
        f"{NAME}: target is on meta; must be on cpu",
    ),
    (
        _args(source=torch.tensor([4, 6])),
        ValueError,
        f"{NAME}: a page of source is 6; must be 0 to 5",
    ),
    (
        _args(target=torch.tensor([1, 4])),
        ValueError,
        f"{NAME}: a page of target is 4; must be 0 to 3",
    ),
    (
        _args(target=torch.tensor([3, 3])),
        ValueError,
        f"{NAME}: page 3 is a target twice; must be one once",
    ),
    (
        _args(source_pages=POOL[:4], target_pages=POOL[2:], source=torch.tensor([0, 1])),
        ValueError,
        f"{NAME}: source_pages and target_pages share memory; must lie apart "
        "(kv_page_copy copies within one pool)",
    ),
]


def _check(source_pages, target_pages, backend, count=3):
    source = torch.randint(0, source_pages.shape[0], (count,))
    target = torch.randperm(target_pages.shape[0])[:count]
    want = target_pages.cpu().clone()
    want[target] = source_pages.cpu()[source]
    kv_page_swap(source_pages, target_pages, source, target, backend=backend)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    assert torch.equal(target_pages.cpu(), want)


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32], ids=str)
def test_moves_pages_on_one_device(op, backend, device, dtype):
    for page in ((1,), (3, 5), (2, 8, 16), (300, 301)):
        source = torch.randint(0, 256, (9, 2, *page), device=device).to(dtype)
        target = torch.randint(0, 256, (7, *page), device=device).to(dtype)
        for pool in (source[:, 0], source[:, 1], source.flatten(0, 1)):
            _check(pool, target, backend)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["reference", "cuda", None])
@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("page", [(16, 8), (3, 5), (64, 8, 128)], ids=str)
def test_moves_pages_between_gpu_and_host(backend, pinned, page):
    """Both ways; also runs of pages that follow each other, and more than a launch takes."""
    host = torch.randint(0, 256, (300, *page), dtype=torch.uint8)
    host = host.pin_memory() if pinned else host
    gpu = torch.randint(0, 256, (400, *page), dtype=torch.uint8, device="cuda")
    if backend == "cuda":  # the name of what runs: the library of the GPU, also from the host
        _check(gpu, host, backend, 250)
    else:
        _check(host, gpu, backend, 250)
        _check(gpu, host, backend, 250)
    source, target = torch.arange(10, 90), torch.arange(200, 280)
    kv_page_swap(gpu, host, source, target)
    torch.cuda.synchronize()
    assert torch.equal(host[200:280], gpu[10:90].cpu())


@pytest.mark.gpu
def test_lists_are_checked_on_the_host_for_a_gpu_too():
    for args, _, message in BAD_VALUES[2:5]:
        with pytest.raises(ValueError, match=re.escape(message)):
            kv_page_swap(args[0].cuda(), *args[1:])
