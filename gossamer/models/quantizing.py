"""Writes a checkpoint in 8 or 4 bits, as compressed-tensors' readers (vLLM's too) have it."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from gossamer.kv.extras import import_extra
from gossamer.models.directory import INDEX, WEIGHTS, DirectorySource
from gossamer.models.layout import layer_name, layer_shapes
from gossamer.models.packed import Int4Rows
from gossamer.models.schemes.compressed_tensors import FORMATS, PACKINGS
from gossamer.models.schemes.matrices import words
from gossamer.models.source import WHOLE
from gossamer.ops.checks import one_of
from gossamer.ops.quantize_fp8 import quantize_fp8
from gossamer.ops.quantize_int8 import quantize_int8

KINDS = ("int8", "fp8", "int4")
GROUPS = (32, 64, 128)  # weights of a row that share a scale of int4
SHARD_BYTES = 4 << 30  # of a file; that many are held in memory
_FORMATS = {packing: layout for layout, packing in PACKINGS.items()}


@dataclass(frozen=True)
class Quantizing:
    """How a checkpoint is quantized. group: of int4. Raises ValueError for other settings."""

    kind: str
    group: int = 32

    def __post_init__(self) -> None:
        one_of("weights", self.kind, KINDS)
        if self.group not in GROUPS:
            valid = ", ".join(map(str, GROUPS))
            raise ValueError(f"group is {self.group}; must be one of {valid}")

    def config(self) -> dict[str, Any]:
        """The quantization_config; activations are quantized as they come, token by token."""
        layout = _FORMATS[self.kind]
        kind, bits, _ = FORMATS[layout]
        base = {"num_bits": bits, "type": kind, "symmetric": self.kind != "int4"}
        weights = {**base, "strategy": "channel", "dynamic": False}
        inputs: dict[str, Any] | None = {**base, "strategy": "token", "dynamic": True}
        if self.kind == "int4":
            weights |= {"strategy": "group", "group_size": self.group}
            inputs = None
        group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
        return {
            "quant_method": "compressed-tensors",
            "format": layout,
            "quantization_status": "compressed",
            "ignore": ["lm_head"],
            "kv_cache_scheme": None,
            "config_groups": {"group_0": {**group, "output_activations": None}},
        }

    def tensors(self, weight: Tensor) -> dict[str, Tensor]:
        """What is stored of a weight [n, k], by the end of its name; ValueError for NaN."""
        if self.kind != "int4":
            quantize = quantize_int8 if self.kind == "int8" else quantize_fp8
            codes, scale = quantize(weight)
            return {"weight": codes, "weight_scale": scale}
        rows = Int4Rows.quantize(weight, self.group, whole_zeros=True)
        return {
            "weight_packed": words(rows.unpacked()),
            "weight_scale": rows.scale,
            "weight_zero_point": words(rows.zero.T.to(torch.uint8)).T.contiguous(),
            "weight_shape": torch.tensor(weight.shape),
        }


def quantize_checkpoint(
    source: DirectorySource,
    output: Path,
    quantizing: Quantizing,
    *,
    progress: Callable[[], None] = lambda: None,
) -> int:
    """Write `output`, a model directory with the layers' matrices quantized; returns its bytes.

    Embeddings, the head, norms and biases stay as they are, as do the tokenizer's files. progress:
    called after each of `count_matrices` of them. The folder is there when all of it is. Raises
    ValueError for a folder that exists, for a model that is quantized already, for rows that groups
    do not divide and for weights that are not finite, naming them.
    """
    if output.exists():
        raise ValueError(f"{output}: is there already; must be a new folder")
    if not output.absolute().parent.is_dir():
        raise ValueError(f"{output}: {output.absolute().parent} is not a directory")
    if source.packing is not None:
        raise ValueError(
            f"{source.name}: its weights are {source.packing} already; must be a checkpoint in "
            "numbers of 16 or 32 bits"
        )
    with TemporaryDirectory(prefix=f".{output.name}-", dir=output.absolute().parent) as temporary:
        folder = Path(temporary) / "model"
        folder.mkdir()
        shards = _Shards(folder)
        for name, tensor in _quantized(source, quantizing, progress):
            shards.add(name, tensor)
        shards.finish()
        _copy_others(source.folder, folder, quantizing)
        total = sum(path.stat().st_size for path in folder.iterdir())
        folder.rename(output)
    return total


def count_matrices(source: DirectorySource) -> int:
    """Those that are quantized."""
    return len(_matrices(source))


def _matrices(source: DirectorySource) -> frozenset[str]:
    config = source.config
    parts = [part for part, shape in layer_shapes(config).items() if len(shape) == 2]
    return frozenset(layer_name(layer, part) for layer in range(config.layers) for part in parts)


def _quantized(
    source: DirectorySource, quantizing: Quantizing, progress: Callable[[], None]
) -> Iterator[tuple[str, Tensor]]:
    matrices = _matrices(source)
    for name, stored in source.tensors():
        tensor = stored[WHOLE]
        if name not in matrices:
            yield name, tensor
            continue
        try:
            parts = quantizing.tensors(tensor)
        except ValueError as error:
            raise ValueError(f"{source.name}: {name}: {error}") from None
        for part, value in parts.items():
            yield f"{name.removesuffix('weight')}{part}", value.contiguous()
        progress()


@dataclass
class _Shards:
    """Safetensors files of a few GB each, with an index where there are several."""

    folder: Path
    _held: dict[str, Tensor] = field(default_factory=dict)
    _files: list[list[str]] = field(default_factory=list)  # names of tensors
    _bytes: int = 0

    def add(self, name: str, tensor: Tensor) -> None:
        if self._held and sum(t.nbytes for t in self._held.values()) + tensor.nbytes > SHARD_BYTES:
            self._write()
        self._held[name] = tensor

    def _write(self) -> None:
        import_extra("safetensors.torch").save_file(
            self._held, str(self.folder / f"{len(self._files)}.safetensors"), {"format": "pt"}
        )
        self._files.append(list(self._held))
        self._bytes += sum(tensor.nbytes for tensor in self._held.values())
        self._held = {}

    def finish(self) -> None:
        self._write()
        if len(self._files) == 1:
            (self.folder / "0.safetensors").rename(self.folder / WEIGHTS)
            return
        places: dict[str, str] = {}
        for i, names in enumerate(self._files):
            file = f"model-{i + 1:05d}-of-{len(self._files):05d}.safetensors"
            (self.folder / f"{i}.safetensors").rename(self.folder / file)
            places |= dict.fromkeys(names, file)
        index = {"metadata": {"total_size": self._bytes}, "weight_map": places}
        (self.folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _copy_others(source: Path, folder: Path, quantizing: Quantizing) -> None:
    """config.json with what was done, and the other files of text: tokenizer, templates, ..."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = quantizing.config()
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for path in sorted(source.iterdir()):
        kept = path.suffix in (".json", ".jinja", ".txt", ".md", ".model") or path.name == "LICENSE"
        is_index = path.name.endswith(".safetensors.index.json")
        if path.is_file() and kept and path.name != "config.json" and not is_index:
            shutil.copy(path, folder / path.name)
