"""From what a person types to a model."""

from pathlib import Path

from gossamer.models.directory import DirectorySource
from gossamer.models.embedded import EMBEDDED, open_embedded
from gossamer.models.gguf import GGUFSource
from gossamer.models.random import RandomSource
from gossamer.models.source import Source


def open_model(model: str | Path, random_weights: bool = False, seed: int = 0) -> Source:
    """A built-in name, a Hugging Face directory or a .gguf file; never downloads.

    random_weights: keep the config (a config.json alone will do) and the tokenizer, and make
    weights from the seed. Raises FileNotFoundError when there is nothing at the path, ImportError
    when a package is missing, and ValueError, naming the file, for one that cannot be used.
    """
    base = _open(model, weights=not random_weights)
    return RandomSource(base, seed) if random_weights else base


def _open(model: str | Path, weights: bool) -> Source:
    if model in EMBEDDED:
        return open_embedded(str(model))
    path = Path(model)
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: there is no such model directory or .gguf file; "
            f"built-in models are {', '.join(EMBEDDED)}"
        )
    if path.is_dir():
        return DirectorySource.open(path, weights)
    if path.suffix == ".gguf":
        return GGUFSource.open(path)
    if path.name == "config.json":
        return DirectorySource.open(path.parent, weights)
    raise ValueError(f"{path}: must be a directory, a .gguf file or a config.json")
