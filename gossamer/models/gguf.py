"""A .gguf file: tensors under Hugging Face's names, dequantized one by one.

The file is read with the `gguf` package, once; through transformers, it would be read again for
the config alone (4 s for a 135M model), and RoPE's factors would be lost.
"""

import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from gossamer.kv.extras import import_extra
from gossamer.models.config import ModelConfig
from gossamer.models.gguf_config import FREQUENCY_FACTORS, config_of, is_permuted
from gossamer.models.packed import GgufRows
from gossamer.models.problems import reading
from gossamer.models.source import Part, StoredTensor
from gossamer.ops.gguf import RUN, TYPES

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, eq=False)
class GGUFSource:
    """See Source. reader: the open file, memory-mapped."""

    path: Path
    reader: Any
    config: ModelConfig
    label: str = ""
    calibration: Path | None = None

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read the header; ValueError for a file that is damaged or of another architecture."""
        reader_type = _reader_type()
        with reading(path, "not a complete GGUF file"):
            reader = reader_type(path, "c")  # copy on write: torch wants memory it might write to
        with reading(path, "not a model that can be used"):
            return cls(path, reader, config_of(reader))

    def named(self, label: str, calibration: Path | None) -> Self:
        """The same model under another name, with a calibration."""
        return replace(self, label=label, calibration=calibration)

    @property
    def name(self) -> str:
        return self.label or self.path.name

    @property
    def packing(self) -> str | None:
        """See Source; a file of plain numbers is not packed."""
        plain = {"F32", "F16", "BF16"}
        packed = any(t.tensor_type.name not in plain for t in self.reader.tensors)
        return "gguf" if packed else None

    def tensors(
        self,
        names: Collection[str] | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Iterator[tuple[str, StoredTensor]]:
        for name, tensor in self._by_name.items():
            if names is None or name in names:
                yield name, _Quantized(self.path, name, tensor, self._permuted_heads(name))

    def tokenizer(self) -> Any:
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> Any:
        """Kept, since transformers takes seconds to find it in the file."""
        if "tokenizer.ggml.tokens" not in self.reader.fields:
            return None
        auto = import_extra("transformers").AutoTokenizer
        with reading(self.path, "its tokenizer cannot be loaded"):
            return auto.from_pretrained(
                str(self.path.parent), gguf_file=self.path.name, local_files_only=True
            )

    @cached_property
    def _by_name(self) -> dict[str, Any]:
        return {
            hugging_face_name(tensor.name): tensor
            for tensor in self.reader.tensors
            if tensor.name != FREQUENCY_FACTORS  # is in the config
        }

    def _permuted_heads(self, name: str) -> int | None:
        """How many heads have rows in the order of interleaved RoPE; None for other tensors."""
        if not is_permuted(self.reader):
            return None
        heads = {"q_proj": self.config.query_heads, "k_proj": self.config.kv_heads}
        return heads.get(name.rpartition(".")[0].rpartition(".")[2])


@dataclass(frozen=True, eq=False)
class _Quantized:
    """See StoredTensor. heads: that are permuted, if any.

    Rows are dequantized as they are asked for, of a permuted tensor by whole heads; columns are
    cut afterwards, because their codes share scales.
    """

    path: Path
    name: str
    tensor: Any
    heads: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(size) for size in reversed(self.tensor.shape))

    def __getitem__(self, part: Part) -> Tensor:
        if len(self.shape) == 1:  # short
            return self._rows(slice(None))[part]
        unit = self.shape[0] // self.heads if self.heads else 1
        rows = range(self.shape[0])[part[0]]
        first, last = rows.start // unit * unit, -(-rows.stop // unit) * unit
        found = self._rows(slice(first, last))
        return found[(slice(rows.start - first, rows.stop - first), *part[1:])]

    def packed(self, part: Part) -> GgufRows:
        """Blocks of these rows, views of the mapped file where they are in order; see PackedTensor.

        ValueError for types that no kernel has, and for columns that cut through a block.
        """
        kind = self.tensor.tensor_type.name.lower()
        if kind not in TYPES or len(self.shape) != 2:
            raise ValueError(f"{self.name} is {kind}; must be one of {', '.join(TYPES)}")
        rows = self._bytes(range(self.shape[0])[part[0]])
        if len(part) == 1:
            return GgufRows(kind, rows)
        block, columns = TYPES[kind], range(self.shape[1])[part[1]]
        unit = max(block.weights, RUN)
        if columns.start % unit or columns.stop % unit:
            raise ValueError(f"{self.name}: columns {columns.start} to {columns.stop} cut a block")
        first, last = (at // block.weights * block.bytes for at in (columns.start, columns.stop))
        return GgufRows(kind, rows[:, first:last])

    def _bytes(self, rows: range) -> Tensor:
        """Of these rows in Hugging Face's order; of a permuted tensor, a copy."""
        with reading(self.path, f"{self.name} cannot be read"):
            stored = torch.from_numpy(self.tensor.data.view(np.uint8).reshape(self.shape[0], -1))
        if self.heads is None:
            return stored[rows.start : rows.stop]
        unit = self.shape[0] // self.heads
        first, last = rows.start // unit * unit, -(-rows.stop // unit) * unit
        whole = unpermute(stored[first:last], (last - first) // unit)
        return whole[rows.start - first : rows.stop - first]

    def _rows(self, rows: slice) -> Tensor:
        """In Hugging Face's order; of a permuted tensor, whole heads."""
        dequantize, kind = import_extra("gguf.quants").dequantize, self.tensor.tensor_type
        with reading(self.path, f"{self.name} ({kind.name}) cannot be dequantized"):
            values = np.asarray(dequantize(self.tensor.data[rows], kind), dtype=np.float32)
        # A plain F32 tensor is a view of the file, which torch cannot have read-only.
        found = torch.from_numpy(values if values.flags.writeable else values.copy())
        if self.heads is None:
            return found
        return unpermute(found, len(found) * self.heads // self.shape[0])


LISTED = 1024  # values of a list in the metadata that are read; a vocabulary has more


def _reader_type() -> Any:
    """The package's reader, with its memory map as a plain array, and without long lists.

    It would cut two arrays out of the file for every token of the vocabulary: 3 s and 175 MB for
    SmolLM2's 49,152 tokens. Nothing here reads those: transformers makes the tokenizer.
    """
    gguf = import_extra("gguf")
    array, string = gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING

    class Reader(gguf.GGUFReader):  # type: ignore[misc, name-defined]
        data = property(
            lambda self: self.__dict__["data"],
            lambda self, value: self.__dict__.update(data=np.asarray(value)),
        )

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type != array:
                return super()._get_field_parts(orig_offs, raw_type)
            kind, first = int(self._get(orig_offs, np.uint32)[0]), orig_offs + 12
            count = int(self._get(orig_offs + 4, np.uint64)[0])
            if count <= LISTED:
                return super()._get_field_parts(orig_offs, raw_type)
            if kind != string:
                size = count * self._get(first, self.gguf_scalar_to_np[kind]).nbytes
                return 12 + size, [], [], [gguf.GGUFValueType(array), gguf.GGUFValueType(kind)]
            end = first
            for _ in range(count):
                end += 8 + int.from_bytes(self.data[end : end + 8], self._byte_order_name)
            return end - orig_offs, [], [], [gguf.GGUFValueType(array), string]

        @property
        def _byte_order_name(self) -> Any:
            return "little" if (sys.byteorder == "little") != (self.byte_order == "S") else "big"

    return Reader


def hugging_face_name(name: str) -> str:
    """Hugging Face's name of a tensor; names that have none stay."""
    stem, _, kind = name.rpartition(".")
    if stem in NAMES:
        return f"{NAMES[stem]}.{kind}"
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if match is None or match[2] not in LAYER_NAMES:
        return name
    return f"model.layers.{match[1]}.{LAYER_NAMES[match[2]]}.{kind}"


def unpermute(tensor: Tensor, heads: int) -> Tensor:
    """Rows of q or k [heads * D, ...] from RoPE's interleaved order to that of halves."""
    pairs = tensor.reshape(heads, -1, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)
