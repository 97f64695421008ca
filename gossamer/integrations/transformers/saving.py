"""A SparseCache as a file, and back."""

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gossamer._version import __version__
from gossamer.integrations.transformers.identity import Owner
from gossamer.kv import Calibration, KVConfig
from gossamer.kv.extras import import_extra
from gossamer.kv.pages import NO_PAGE

FORMAT = 3  # 2: the digest is of all of a calibration; 3: blocks of format 2 (kv_block)


def save(cache: Any, path: str | os.PathLike[str]) -> None:
    """Write the pages in use and what they belong to, or leave what was there.

    Raises ValueError for a cache that is empty or whose model is gone, so that nobody could tell
    later whose tokens these are.
    """
    if cache.rows is None:
        raise ValueError("the cache is empty; generate with it before saving it")
    sketches = cache.owner.sketched()
    rows = cache.rows
    used = rows.table.compact()
    pages = torch.tensor(used or [0], device=rows.device)
    for layer in cache.layers:
        layer.replace(**{name: layer.pools[name].index_select(0, pages) for name in ("k", "v")})
    rows.table.reset(rows.table.rows, len(pages))
    rows.forget_tables()
    tensors = {
        f"{index}.{name}": pool.squeeze(1).contiguous()
        for index, layer in enumerate(cache.layers)
        for name, pool in layer.pools.items()
    }
    about = {
        "format": FORMAT,
        "gossamer": __version__,
        "kv": str(rows.ring.spec.config),
        "dtype": str(rows.ring.spec.dtype).removeprefix("torch."),
        "shape": str(cache.shape),
        "spare": cache.spare,
        "seen": rows.seen,
        "full": rows.full,
        "lengths": rows.lengths,
        "lost": rows.lost,
        "pages": rows.table.rows,
        "sketches": sketches,
        "calibration": _digest(cache.calibration),
    }
    data = import_extra("safetensors.torch").save(
        {name: tensor.cpu() for name, tensor in tensors.items()},
        metadata={"gossamer_cache": json.dumps(about)},
    )
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def load(
    kind: Any, path: str | os.PathLike[str], config: Any, calibration: Any, device: torch.device
) -> Any:
    """A cache of class `kind`; see SparseCache.load."""
    about, tensors = _read(path)
    dtype = getattr(torch, about["dtype"])
    cache = kind(config, KVConfig.of(about["kv"], dtype), calibration=calibration)
    if about["shape"] != str(cache.shape):
        raise ValueError(f"{path}: made with {about['shape']}; the config has {cache.shape}")
    if about["calibration"] != _digest(cache.calibration):
        raise ValueError(f"{path}: made with another calibration than the one that is given")
    cache.spare = about["spare"]
    heads, head_dim = cache.shape.kv_heads, cache.shape.head_dim
    lengths = about["lengths"]
    cache._allocate(torch.empty(len(lengths), heads, 0, head_dim, dtype=dtype, device=device))
    cache.owner = Owner(cache.shape.layers, tuple(map(tuple, about["sketches"])))
    rows = cache.rows
    rows.lengths, rows.seen, rows.full = lengths, about["seen"], about["full"]
    rows.lost = about["lost"]
    for index, layer in enumerate(cache.layers):
        for name, old in layer.pools.items():
            new = tensors[f"{index}.{name}"].unsqueeze(1)
            pages = None if name in ("k", "v") else len(old)
            if new.shape[1:] != old.shape[1:] or (pages is not None and len(new) != pages):
                raise ValueError(
                    f"{path}: {name} of layer {index} has shape {list(new.squeeze(1).shape)}; "
                    "damaged?"
                )
            layer.replace(**{name: new.to(device, copy=True)})  # views of a file are not aligned
    rows.table.reset(about["pages"], min(len(layer.pools["k"]) for layer in cache.layers))
    highest = max((page for row in rows.table.rows for page in row), default=NO_PAGE)
    if highest >= rows.table.size:
        raise ValueError(f"{path}: names page {highest} of {rows.table.size}; damaged?")
    return cache


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    safetensors = import_extra("safetensors")
    try:
        with safetensors.safe_open(os.fspath(path), framework="pt") as file:
            text = (file.metadata() or {}).get("gossamer_cache")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path}: not a safetensors file: {error}") from None
    if text is None:
        raise ValueError(f"{path}: not a saved SparseCache")
    about = json.loads(text)
    if about.get("format") != FORMAT:
        raise ValueError(f"{path}: format is {about.get('format')!r}; this version reads {FORMAT}")
    return about, tensors


def _digest(calibration: Calibration | None) -> str | None:
    """Of the calibration's numbers."""
    if calibration is None:
        return None
    found = sha256()
    for name in sorted(calibration.tensors):
        found.update(calibration.tensors[name].contiguous().numpy().tobytes())
    return found.hexdigest()
