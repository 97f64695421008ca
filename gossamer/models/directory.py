"""A Hugging Face directory: config.json, safetensors in one file or several, a tokenizer."""

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from gossamer.kv.extras import import_extra
from gossamer.models.config import ModelConfig, require_model_type, token_ids
from gossamer.models.layout import tensor_shapes
from gossamer.models.problems import reading
from gossamer.models.schemes import KEYS, Scheme, scheme_of
from gossamer.models.source import Part, StoredTensor

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


@dataclass(frozen=True)
class DirectorySource:
    """See Source. folder: never written to, and nothing is ever downloaded.

    scheme: how its matrices are quantized, if they are. Those are PackedTensors then.
    """

    folder: Path
    config: ModelConfig
    calibration: Path | None = None
    scheme: Scheme | None = None

    @classmethod
    def open(cls, folder: Path, weights: bool = True) -> Self:
        """Read the config; ValueError for a damaged one, and for no safetensors if `weights`."""
        config, scheme = _read_config(folder)
        if weights:
            _files(folder)
        return cls(folder, config, scheme=scheme)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def packing(self) -> str | None:
        return None if self.scheme is None else self.scheme.packing

    def tensors(
        self,
        names: Collection[str] | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Iterator[tuple[str, StoredTensor]]:
        if self.scheme is None:
            yield from self._stored(lambda name: names is None or name in names)
            return
        # All the tensors of a module: those of one matrix may be in several files.
        modules = None if names is None else {_module(name) for name in names}
        held = dict(self._stored(lambda name: modules is None or _module(name) in modules))
        with reading(self.folder, f"its {self.scheme.label} matrices cannot be used"):
            for name, tensor in self.scheme.tensors(held, tensor_shapes(self.config)):
                if names is None or name in names:
                    yield name, tensor

    def _stored(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, "_Slices"]]:
        """Tensors as the files have them."""
        safetensors = import_extra("safetensors")
        for path, indexed in _files(self.folder).items():
            if indexed is not None and not any(map(wanted, indexed)):
                continue
            what = "not a complete safetensors file"
            with reading(path, what), safetensors.safe_open(str(path), framework="pt") as file:
                held = set(file.keys())
                if indexed is not None and (missing := sorted(set(indexed) - held)):
                    raise ValueError(f"has no {missing[0]}, which {INDEX} says is in it")
                for name in sorted(held) if indexed is None else indexed:
                    if wanted(name):
                        yield name, _Slices(path, name, file.get_slice(name))

    def tokenizer(self) -> Any:
        if not any((self.folder / name).is_file() for name in TOKENIZERS):
            return None
        auto = import_extra("transformers").AutoTokenizer
        with reading(self.folder, "its tokenizer cannot be loaded"):
            return auto.from_pretrained(str(self.folder), local_files_only=True)


@dataclass(frozen=True, eq=False)
class _Slices:
    """See StoredTensor. slices: those of safetensors, which outlive the open file."""

    path: Path
    name: str
    slices: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.slices.get_shape())

    @property
    def dtype(self) -> str:
        """In the file's words, like "F16"."""
        return str(self.slices.get_dtype())

    def __getitem__(self, part: Part) -> Tensor:
        with reading(self.path, f"{self.name} cannot be read"):
            tensor: Tensor = self.slices[part]
            return tensor


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _read_config(folder: Path) -> tuple[ModelConfig, Scheme | None]:
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder}: has no config.json; must be a Hugging Face model directory")
    auto = import_extra("transformers").AutoConfig
    with reading(path, "not a config that can be used"):
        # Before transformers, which answers with a list of all the models it knows.
        found = _read_json(path)
        require_model_type(found.get("model_type"))
        scheme = scheme_of(found)
        config = auto.from_pretrained(str(folder), local_files_only=True)
        for key in KEYS:
            setattr(config, key, None)  # what it says is in the scheme now
        return ModelConfig.from_hf(config, _generation_eos(folder)), scheme


def _generation_eos(folder: Path) -> tuple[int, ...] | None:
    """Llama 3 has several tokens that end a text, and names them all only here.

    Read as JSON: transformers' GenerationConfig also judges settings that do not matter here.
    """
    path = folder / "generation_config.json"
    if not path.is_file():
        return None
    with reading(path, "not a generation config"):
        return token_ids(_read_json(path).get("eos_token_id")) or None


def _files(folder: Path) -> dict[Path, list[str] | None]:
    """Weight files and the tensors that the index says are in them; None: all that are there."""
    if (folder / WEIGHTS).is_file():
        return {folder / WEIGHTS: None}
    index = folder / INDEX
    if not index.is_file():
        found = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth"))
        others = f" (only {', '.join(found[:3])}: convert with save_pretrained)" if found else ""
        raise ValueError(f"{folder}: must have {WEIGHTS} or {INDEX}; has neither{others}")
    files: dict[Path, list[str] | None] = {}
    with reading(index, "not an index of safetensors"):
        for name, file in sorted(_read_json(index)["weight_map"].items()):
            if Path(file).name != file:
                raise ValueError(f"{name} is in {file!r}; must be a file next to the index")
            if not (folder / file).is_file():
                raise ValueError(f"{name} is in {file}, and there is no such file")
            listed = files.setdefault(folder / file, [])
            assert listed is not None
            listed.append(name)
    return files


def _read_json(path: Path) -> dict[str, Any]:
    data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise ValueError(f"is a {type(data).__name__}; must be an object")
    return data
