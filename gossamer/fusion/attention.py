"""Attention of a graph under a mask: which kernel computes it, and the call it becomes."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.nn import functional as F

from gossamer.attention.candidates import Arguments, Candidate
from gossamer.attention.prepared import PreparedMask, prepare
from gossamer.attention.selector import candidates, plan
from gossamer.fusion.constants import Constants
from gossamer.fusion.operators import Attention, Operator
from gossamer.fusion.patterns import name_of, shape_of, tensor_of
from gossamer.fusion.prepared_weights import PreparedWeights
from gossamer.fusion.site_masks import SiteMask, combined, is_self_attention, site_mask
from gossamer.masks import Causal, Mask
from gossamer.ops import OPS

HEAD_DIMS = range(32, 257, 8)


@dataclass(frozen=True, eq=False)
class Site:
    """An attention, and the mask it has. prepared: None where torch's own computes it.

    own: the user's mask, where the graph's own depends on inputs: both are then applied densely.
    """

    attention: Attention
    prepared: PreparedMask | None
    bias: Node | None = None
    own: Mask | None = None

    @property
    def density(self) -> float:
        """The share of pairs that are computed."""
        return 1.0 if self.prepared is None else self.prepared.facts((64, 64)).density

    @property
    def description(self) -> str:
        if self.prepared is not None:
            bias = " and a bias" if self.bias is not None else ""
            return f"{self.prepared.mask}{bias}"
        return "a mask that depends on inputs" if self.attention.mask is not None else "no mask"


@dataclass
class Sites:
    """The attentions of a graph under the user's mask; equal masks are prepared once."""

    constants: Constants
    operators: Sequence[Operator]
    device: torch.device
    mask: Mask | None
    replace: bool = True
    _of_nodes: dict[Any, SiteMask] = field(default_factory=dict)
    _prepared: dict[Any, PreparedMask] = field(default_factory=dict)

    def of(self, attention: Attention) -> Site:
        """ValueError where the mask is for other lengths, batches or heads."""
        q, k = shape_of(attention.q), shape_of(attention.k)
        own = self.mask
        if own is not None and not is_self_attention(attention, list(self.operators)):
            own = None
        if own is not None:
            _check(own, q, k)
        key = (attention.mask, attention.causal)
        if key not in self._of_nodes:
            self._of_nodes[key] = site_mask(attention, self.constants)
        site = self._of_nodes[key]
        found = combined(site, own)
        written_out = name_of(attention.out) != "sdpa"
        worth = own is not None or attention.mask is not None or written_out
        fits = self._fits(attention)
        if found is None or not worth or not fits or not self.replace:
            return Site(attention, None, own=own)
        return Site(attention, self._prepare(found, q[2], k[2]), site.bias)

    def _fits(self, attention: Attention) -> bool:
        """Whether masked attention takes these arguments; SDPA broadcasts batches, for example."""
        q, k, v = (shape_of(node) for node in (attention.q, attention.k, attention.v))
        tensors = [tensor_of(node) for node in (attention.q, attention.k, attention.v)]
        like = k == v and q[0] == k[0] and q[3] == k[3] and q[1] % k[1] == 0
        known = q[3] in HEAD_DIMS and len({x.dtype for x in tensors if x is not None}) == 1
        return like and known and all(x is not None and x.stride(-1) == 1 for x in tensors)

    def _prepare(self, mask: Mask, q_len: int, kv_len: int) -> PreparedMask:
        key = (mask, q_len, kv_len)
        if key not in self._prepared:
            self._prepared[key] = prepare(mask, q_len, kv_len, self.device)
        return self._prepared[key]


def _check(mask: Mask, q: Sequence[int], k: Sequence[int]) -> None:
    mask.check(q[2], k[2])
    for name, given, wanted in (("batch", q[0], mask.batch), ("heads", q[1], mask.heads)):
        if wanted is not None and given != wanted:
            raise ValueError(
                f"mask is for {name} {wanted}; must be {given}, which the model's attention has"
            )


def random_arguments(site: Site) -> Arguments:
    """Random numbers in the shape and layout of an attention's arguments, to choose and to time."""
    device = site.prepared.device if site.prepared is not None else None
    nodes = (site.attention.q, site.attention.k, site.attention.v)
    q, k, v = (_random(node, device) for node in nodes)
    bias = None if site.bias is None else _random(site.bias, device)
    return Arguments(q, k, v, bias, site.attention.scale, 0.0, False)


def _random(node: Node, device: torch.device | None) -> Tensor:
    like = tensor_of(node)
    assert like is not None, "operators have tensors"
    empty = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)
    return empty.normal_()


def choices(site: Site) -> list[Candidate]:
    """What may compute it."""
    assert site.prepared is not None, "torch's own has no choices"
    return candidates(site.prepared, random_arguments(site))


def usual(site: Site) -> Candidate:
    """The selector's choice."""
    assert site.prepared is not None, "torch's own has no choices"
    found = plan(site.prepared, random_arguments(site), None)
    return found.candidate


def lower_attention(
    site: Site, candidate: Candidate | None, graph: Graph, weights: PreparedWeights
) -> None:
    """Write the call into the graph. Without a candidate the attention stays torch's own."""
    with graph.inserting_before(site.attention.out):
        if candidate is not None:
            made = _calls(site, graph, weights)[candidate.kernel](candidate)
        elif site.own is not None:
            made = _dense(site, graph, weights)
        else:
            return
    site.attention.out.replace_all_uses_with(made)


class _Calls:
    """The call of each kind of candidate."""

    def __init__(self, site: Site, graph: Graph, weights: PreparedWeights) -> None:
        assert site.prepared is not None, "torch's own has no candidates"
        self.site, self.mask, self.graph, self.weights = site, site.prepared, graph, weights
        attention = site.attention
        self.qkv = (attention.q, attention.k, attention.v)

    def block(self, candidate: Candidate) -> Node:
        mask, tile = self.mask, candidate.tile
        tiles = mask.tiles(tile)
        names = ("offsets", "tiles", "bits", "order")
        lists = [self._table((tile, name), getattr(tiles, name)) for name in names]
        work = None
        if candidate.backend == "cuda":
            work = self._table((tile, candidate.limit), mask.work(tile, candidate.limit))
        overload = OPS["masked_attention"].select(mask.device.type, candidate.backend)
        rest = (work, self.site.bias, self.site.attention.scale, 0.0, False)
        return self._first(self.graph.call_function(overload, (*self.qkv, *lists, *rest)))

    def rows(self, candidate: Candidate) -> Node:
        mask = self.mask
        lists = [self._table(("rows", i), table) for i, table in enumerate(mask.lists())]
        overload = OPS["masked_attention_rows"].select(mask.device.type, candidate.backend)
        rest = (mask.mask.batch or 1, mask.mask.heads or 1, self.site.attention.scale, 0.0)
        args = (*self.qkv, *lists, self.site.bias, *rest)
        return self._first(self.graph.call_function(overload, args))

    def sdpa(self, candidate: Candidate) -> Node:
        causal = candidate.backend != "mask" and self.mask.shape() == "causal"
        scale = self.site.attention.scale
        if candidate.backend == "flash":
            flash = torch.ops.aten._scaled_dot_product_flash_attention.default
            args: tuple[Any, ...] = (*map(self._aligned, self.qkv), 0.0, causal, False)
            return self._first(self.graph.call_function(flash, args, {"scale": scale}))
        if candidate.backend == "cudnn":
            cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention.default
            args = (*map(self._aligned, self.qkv), None, False, 0.0, causal, False)
            return self._first(self.graph.call_function(cudnn, args, {"scale": scale}))
        dense = None
        if candidate.backend == "mask":
            dense = self._table("dense", self.mask.dense())
        return _sdpa(self.graph, self.qkv, dense, causal, scale)

    def _table(self, key: Any, table: Tensor) -> Node:
        return self.weights.constant((id(self.mask), key), lambda: table)

    def _first(self, made: Node) -> Node:
        return self.graph.call_function(operator.getitem, (made, 0))

    def _aligned(self, node: Node) -> Node:
        """Rows in multiples of 16 bytes, which torch's kernels read at a time."""
        tensor = tensor_of(node)
        assert tensor is not None, "operators have tensors"
        if all(s * tensor.element_size() % 16 == 0 for s in tensor.stride()[:3]):
            return node
        return self.graph.call_method("contiguous", (node,))


def _calls(site: Site, graph: Graph, weights: PreparedWeights) -> dict[str, Any]:
    calls = _Calls(site, graph, weights)
    return {"block": calls.block, "rows": calls.rows, "sdpa": calls.sdpa}


def _sdpa(
    graph: Graph, qkv: tuple[Node, Node, Node], mask: Node | None, causal: bool, scale: float
) -> Node:
    grouped = shape_of(qkv[0])[1] != shape_of(qkv[1])[1]
    options: dict[str, Any] = {
        "attn_mask": mask,
        "is_causal": causal,
        "scale": scale,
        "enable_gqa": grouped,
    }
    return graph.call_function(F.scaled_dot_product_attention, qkv, options)


def _dense(site: Site, graph: Graph, weights: PreparedWeights) -> Node:
    """torch's own under the user's mask and the graph's, both as tensors."""
    attention, own = site.attention, site.own
    assert own is not None, "there is a mask to add"
    if attention.causal:
        own = own & Causal()
    lengths = shape_of(attention.q)[2], shape_of(attention.k)[2]
    device = tensor_of(attention.q).device  # type: ignore[union-attr]
    table = weights.constant(("dense", own, *lengths), lambda: own.dense(*lengths, device))
    qkv = (attention.q, attention.k, attention.v)
    given = attention.mask
    if given is None:
        mask = table
    elif tensor_of(given).dtype is torch.bool:  # type: ignore[union-attr]
        mask = graph.call_function(operator.and_, (given, table))
    else:
        mask = graph.call_function(torch.where, (table, given, float("-inf")))
    return _sdpa(graph, qkv, mask, False, attention.scale)
