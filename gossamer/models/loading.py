"""Streams a source's tensors into the fused weights of a decoder, or of one shard of it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.kv.bases import Basis
from gossamer.kv.fingerprint import Fingerprint
from gossamer.kv.folding import turn_output, turn_values
from gossamer.models.config import ModelConfig
from gossamer.models.decoder import Decoder
from gossamer.models.layout import EMBEDDING, HEAD, NORM, layer_name, tensor_shapes
from gossamer.models.matrix import Matrix, PackedMatrix, stored_as
from gossamer.models.precision import Precision
from gossamer.models.shard import Shard
from gossamer.models.source import WHOLE, Part, Source, StoredTensor
from gossamer.models.weights import LayerWeights, Weights

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HARMLESS = re.compile(r"(^|\.)rotary_emb\.(inv_freq|(cos|sin)_cached)$")  # computed from the config
LISTED = 4  # names in an error message


@dataclass(frozen=True, eq=False)
class Row:
    """Tensor `index` of those that are one below the other in a matrix of few bits."""

    matrix: PackedMatrix
    index: int


# Where a tensor goes: into which memory (None: this rank has no use for it), and which part of it.
Place = tuple[Tensor | Row | None, Part]


@torch.no_grad()
def load_decoder(
    source: Source,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    max_len: int,
    shard: Shard | None = None,
    v_basis: Basis | None = None,
    weights: str = "float",
) -> Decoder:
    """A decoder with the source's weights, rounded to dtype, for positions below max_len.

    weights: float, or in how many bits matrices are held, see gossamer.models.precision.
    Only the shard's parts of tensors are read. v_basis: of all layers and the shard's KV heads;
    folded into the V and output projections in float64 before they are rounded, see
    gossamer.kv.folding. Raises ValueError for other dtypes and shapes, for a shard that does not
    divide the model, and for tensors that are missing, unexpected, there twice or of another
    shape, naming them.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype}; must be float32, float16 or bfloat16")
    config, shard, device = source.config, shard or Shard(), torch.device(device)
    shard.check(config)
    if v_basis is not None:
        shape = shard.kv_shape(config)
        expected = (shape.layers, shape.kv_heads, shape.head_dim, shape.head_dim)
        if tuple(v_basis.matrix.shape) != expected:
            raise ValueError(f"v_basis is {list(v_basis.matrix.shape)}; must be {list(expected)}")
    precision = Precision.of(weights, source, device).with_v_basis(device)
    turned = v_basis is not None
    try:
        memory = Weights.empty(config, shard, dtype, device, precision, turned)
        _fill(memory, source, shard, v_basis)
    except ValueError as error:
        raise ValueError(f"{source.name}: {error}") from None
    return Decoder(config, memory, max_len=max_len, shard=shard)


def source_fingerprint(source: Source) -> Fingerprint:
    """What gossamer.kv.folding.fingerprint says of the same model; ValueError if K or V is missing.

    Reads the K and V projections only.
    """

    def projections(part: str) -> Iterator[Tensor]:
        for layer in range(source.config.layers):
            name = layer_name(layer, f"self_attn.{part}.weight")
            found = next(source.tensors([name]), None)
            if found is None:
                raise ValueError(f"{source.name}: {name} is missing")
            yield found[1][WHOLE]

    return Fingerprint.of(source.config.kv_shape, projections("k_proj"), projections("v_proj"))


def _fill(weights: Weights, source: Source, shard: Shard, v_basis: Basis | None) -> None:
    """Every tensor into its place; ValueError unless each comes exactly once in its shape."""
    config, like = source.config, weights.norm
    shapes, places = tensor_shapes(config), _places(config, weights, shard)
    missing, unexpected = dict.fromkeys(shapes), []
    tied_head = None
    for name, tensor in source.tensors(dtype=like.dtype, device=like.device):
        if name == HEAD and config.tied:
            tied_head = tensor
        elif name not in shapes:
            unexpected += [] if HARMLESS.search(name) else [name]
        else:
            _check(name, tensor.shape, shapes[name], already=name not in missing)
            del missing[name]
            _put(name, tensor, places[name], v_basis, like.device)
    if missing:
        raise ValueError(f"tensors are missing: {_some(list(missing))}")
    if unexpected:
        raise ValueError(f"tensors that its config has no place for: {_some(unexpected)}")
    if tied_head is not None and not _same(tied_head[WHOLE], _embedding(weights, source)):
        raise ValueError(f"{HEAD} is not {EMBEDDING}, and its config says that they are tied")


def _put(
    name: str, tensor: StoredTensor, place: Place, v_basis: Basis | None, device: torch.device
) -> None:
    """A tensor's part into its memory: copied, kept as it is stored, or quantized."""
    memory, part = place
    if memory is None:
        return
    if isinstance(memory, Tensor):
        memory.copy_(_folded(name, _floats(name, tensor[part]), v_basis, device))
        return
    matrix = memory.matrix
    kept = None if _turns(name, v_basis) else stored_as(matrix.stored, tensor, part)
    if kept is None:
        floats = _folded(name, _floats(name, tensor[part]), v_basis, device)
        try:
            kept = matrix.quantized(floats.to(device, torch.float32))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    matrix.put(memory.index, kept)


def _embedding(weights: Weights, source: Source) -> Tensor:
    """As numbers, which a packed one is read again for."""
    if isinstance(weights.embedding, Tensor):
        return weights.embedding
    (found,) = source.tensors([EMBEDDING], dtype=weights.norm.dtype)
    return found[1][WHOLE].to(weights.norm.dtype)


def _places(config: ModelConfig, weights: Weights, shard: Shard) -> dict[str, Place]:
    """Where each tensor goes, by its full name."""
    places: dict[str, Place] = {
        EMBEDDING: (_row(weights.embedding), WHOLE),
        NORM: (weights.norm, WHOLE),
        HEAD: (_row(weights.head), WHOLE),
    }
    for index, layer in enumerate(weights.layers):
        for part, place in _layer_places(config, layer, shard).items():
            places[layer_name(index, part)] = place
    return places


def _layer_places(config: ModelConfig, layer: LayerWeights, shard: Shard) -> dict[str, Place]:
    queries, keys = shard.query_heads(config), shard.kv_heads(config)
    q_rows, kv_rows = (_slice(heads, config.head_dim) for heads in (queries, keys))
    inter = _slice(shard.intermediate(config))
    places: dict[str, Place] = {
        "input_layernorm.weight": (layer.attention_norm, WHOLE),
        "post_attention_layernorm.weight": (layer.mlp_norm, WHOLE),
        "self_attn.o_proj.weight": (_row(layer.o), (*WHOLE, q_rows)),
        "self_attn.o_proj.bias": (layer.o_bias, WHOLE),
        "mlp.down_proj.weight": (_row(layer.down), (*WHOLE, inter)),
        "mlp.down_proj.bias": (layer.down_bias, WHOLE),
    }
    fused = (
        ("self_attn", {"q": q_rows, "k": kv_rows, "v": kv_rows}, layer.qkv, layer.qkv_bias),
        ("mlp", {"gate": inter, "up": inter}, layer.gate_up, layer.gate_up_bias),
    )
    for owner, parts, weight, bias in fused:
        lengths = [rows.stop - rows.start for rows in parts.values()]
        for kind, memory in (("weight", weight), ("bias", bias)):
            if memory is not None:
                for (name, rows), own in zip(parts.items(), _split(memory, lengths), strict=True):
                    places[f"{owner}.{name}_proj.{kind}"] = (own, (rows,))
    if layer.qk_norm is not None:  # copied once per head
        places["self_attn.q_norm.weight"] = (layer.qk_norm[: len(queries)], WHOLE)
        places["self_attn.k_norm.weight"] = (layer.qk_norm[len(queries) :], WHOLE)
    return places


def _row(memory: Matrix) -> Tensor | Row:
    return Row(memory, 0) if isinstance(memory, PackedMatrix) else memory


def _split(memory: Matrix, lengths: list[int]) -> Sequence[Tensor | Row]:
    """The memory of each of several tensors that are one below the other."""
    if isinstance(memory, PackedMatrix):
        return [Row(memory, index) for index in range(len(lengths))]
    parts: Sequence[Tensor] = memory.split(lengths)
    return parts


def _slice(items: range, size: int = 1) -> slice:
    """What items of this size take of a dimension."""
    return slice(items.start * size, items.stop * size)


def _turns(name: str, v_basis: Basis | None) -> bool:
    """Whether a basis of V changes this tensor."""
    turned = re.search(r"self_attn\.(v_proj\.|o_proj\.weight)", name)
    return v_basis is not None and turned is not None


def _folded(name: str, tensor: Tensor, v_basis: Basis | None, device: torch.device) -> Tensor:
    """V and output projections in V's basis, the others as they are."""
    if v_basis is None or not _turns(name, v_basis):
        return tensor
    turn = turn_values if "v_proj" in name else turn_output
    return turn(tensor.to(device), v_basis, int(name.split(".")[2]))


def _check(name: str, shape: Sequence[int], expected: tuple[int, ...], already: bool) -> None:
    if already:
        raise ValueError(f"{name} is there twice")
    if tuple(shape) != expected:
        raise ValueError(f"{name} is {list(shape)}; must be {list(expected)}")


def _floats(name: str, tensor: Tensor) -> Tensor:
    if tensor.dtype not in (*DTYPES, torch.float64):
        raise ValueError(
            f"{name} is of {tensor.dtype}; must be float64, float32, float16 or bfloat16"
        )
    return tensor


def _same(tensor: Tensor, memory: Tensor) -> bool:
    return tensor.shape == memory.shape and torch.equal(
        tensor.to(memory.device, memory.dtype), memory
    )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(sorted(names)[:LISTED]) + more
