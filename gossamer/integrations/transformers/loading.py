"""Load a model and its tokenizer from files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from gossamer.kv.extras import import_extra


def load_model(
    path: str | Path, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> tuple[Any, Any]:
    """(model, tokenizer) of a local Hugging Face directory or a .gguf file; never downloads.

    Raises FileNotFoundError when there is nothing at `path`, ImportError when the `models` extra is
    not installed, and ValueError for a device that is not there and for anything that cannot be
    loaded completely, with every weight in its place and none left over.
    """
    transformers, folder, where = _place(Path(path), device)
    with _naming(path):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **where)
    return load_weights(path, dtype, device), tokenizer


def load_weights(path: str | Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
    """The model alone, for one that comes without a tokenizer too. Raises as load_model does."""
    path = Path(path)
    transformers, folder, where = _place(path, device)
    with _naming(path):
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder, **where, dtype=dtype, output_loading_info=True
        )
    incomplete = sorted(map(str, {*report["missing_keys"], *report["mismatched_keys"]}))
    if incomplete:
        raise ValueError(f"{path}: weights missing or of another shape: {', '.join(incomplete)}")
    if unexpected := sorted(map(str, report["unexpected_keys"])):
        raise ValueError(f"{path}: weights its config has no place for: {', '.join(unexpected)}")
    model.name_or_path = str(path)
    return model.eval().to(device)


def _place(path: Path, device: str) -> tuple[Any, str, dict[str, Any]]:
    """transformers, the folder and what its loaders are told. Raises as load_model does."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such model directory or .gguf file")
    if path.is_file() and path.suffix != ".gguf":
        raise ValueError(f"{path}: must be a directory or a .gguf file")
    _check_device(device)
    transformers = import_extra("transformers")
    where: dict[str, Any] = {"local_files_only": True}
    if path.is_file():
        for module in ("gguf", "accelerate"):  # what transformers reads GGUF files with
            import_extra(module)
        where["gguf_file"] = path.name
    return transformers, str(path.parent if path.is_file() else path), where


@contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    """The loaders raise whatever they trip over."""
    try:
        yield
    except Exception as error:
        problem = f"{type(error).__name__}: {_first_line(error)}"
        raise ValueError(f"{path}: cannot be loaded: {problem}") from error


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch without CUDA
        raise ValueError(f"device {device!r} cannot be used: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")
