"""The mask of an attention in a graph: what is known of it, and the bias that is added with it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from gossamer.fusion.constants import Constants
from gossamer.fusion.operators import Attention, Gemm, Operator
from gossamer.fusion.patterns import name_of, tensor_of, uncast
from gossamer.masks import Causal, DenseMask, Full, Mask

HIDDEN = -1e4  # what is added to a score that nobody is to see: exp(-10,000) is 0 in float32


@dataclass(frozen=True, eq=False)
class SiteMask:
    """mask: of this attention; None where it is computed from inputs. bias: a node, or None."""

    mask: Mask | None
    bias: Node | None = None


def site_mask(attention: Attention, constants: Constants) -> SiteMask:
    """What the graph says of an attention's mask."""
    found = _of_node(attention, constants)
    if attention.causal and found.mask is not None:
        # torch's own counts from the first key, whatever the lengths.
        return SiteMask(_both(Causal(), found.mask), found.bias)
    return found


def _of_node(attention: Attention, constants: Constants) -> SiteMask:
    node = attention.mask
    if node is None:
        return SiteMask(Full())
    if constants.holds(node):
        known = _analysed(constants.value(node))
        return SiteMask(known) if known is not None else SiteMask(Full(), node)
    split = _split_bias(node, constants)
    if split is not None:
        return split
    # A bias of the model's own (T5's positions): it comes from parameters, not from inputs.
    return SiteMask(Full(), node) if _is_bias(node, constants) else SiteMask(None)


def _analysed(tensor: Any) -> Mask | None:
    """A mask that hides what a tensor hides; None for one that adds other numbers."""
    if not isinstance(tensor, Tensor) or not 2 <= tensor.dim() <= 4:
        return None
    allowed = tensor
    if tensor.dtype is not torch.bool:
        if not tensor.is_floating_point():
            return None
        allowed = tensor == 0
        if not bool((allowed | (tensor <= HIDDEN)).all()):
            return None
        finite = bool(torch.isfinite(tensor).all())
        if finite and not bool(allowed.any(-1).all()):
            return None  # softmax spreads over a row of equal numbers; a mask gives zeros
    allowed = allowed[(None,) * (4 - allowed.dim())]
    for dim in (0, 1):
        if allowed.shape[dim] > 1 and bool((allowed == allowed.narrow(dim, 0, 1)).all()):
            allowed = allowed.narrow(dim, 0, 1)
    return _simplest(allowed.contiguous())


def _simplest(allowed: Tensor) -> Mask:
    """A mask that needs no tensor where it is one of those."""
    if bool(allowed.all()):
        return Full()
    q_len, kv_len = allowed.shape[2:]
    causal = Causal(kv_len - q_len)
    same = allowed.shape[:2] == (1, 1)
    if same and bool((allowed == causal.dense(q_len, kv_len, allowed.device)).all()):
        return causal
    return DenseMask(allowed)


def _split_bias(node: Node, constants: Constants) -> SiteMask | None:
    """where(mask, bias, a very negative number), or bias + mask."""
    node = uncast(node)
    if name_of(node) == "contiguous":
        node = uncast(node.args[0])
    if name_of(node) == "where" and len(node.args) == 3 and _hides(node.args[2], constants):
        pairs = [node.args[:2]]
    elif name_of(node) == "add" and len(node.args) == 2:
        pairs = [node.args, node.args[::-1]]
    else:
        return None
    for shown, bias in pairs:
        if not isinstance(shown, Node) or not isinstance(bias, Node) or not constants.holds(shown):
            continue
        mask = _analysed(constants.value(shown))
        if mask is not None and _rows_see(mask, node) and _is_bias(bias, constants):
            return SiteMask(mask, bias)
    return None


def _hides(node: Any, constants: Constants) -> bool:
    """A number that is very negative, or a constant tensor of one."""
    value = constants.value(node) if isinstance(node, Node) and constants.holds(node) else node
    if isinstance(value, Tensor):
        return value.numel() == 1 and float(value) <= HIDDEN
    return isinstance(value, (int, float)) and value <= HIDDEN


def _rows_see(mask: Mask, node: Node) -> bool:
    """Whether every query sees something: equal numbers are spread over, not hidden."""
    shape = tensor_of(node)
    if shape is None or shape.dim() < 2:
        return False
    return bool(mask.dense(shape.shape[-2], shape.shape[-1], "cpu").any(-1).all())


def _is_bias(node: Node, constants: Constants) -> bool:
    """Floats that are made of parameters and constants alone."""
    tensor = tensor_of(node)
    if tensor is None or not tensor.is_floating_point():
        return False
    waiting, seen = [node], set()
    while waiting:
        node = waiting.pop()
        if node in seen or constants.holds(node):
            continue
        seen.add(node)
        if node.op == "placeholder" and node not in constants.static:
            return False
        waiting += node.all_input_nodes
    return True


def _both(left: Mask, right: Mask) -> Mask:
    if isinstance(left, Full):
        return right
    return left if isinstance(right, Full) or left == right else left & right


def combined(site: SiteMask, own: Mask | None) -> Mask | None:
    """The site's mask and the one that the user set."""
    if site.mask is None or own is None:
        return site.mask
    return _both(own, site.mask)


def is_self_attention(attention: Attention, operators: list[Operator]) -> bool:
    """Whether queries and keys are projections of the same tensor."""
    gemms = {operator.out: operator for operator in operators if isinstance(operator, Gemm)}
    q, k = _sources(attention.q, gemms), _sources(attention.k, gemms)
    if q and k:
        return q == k
    queries, keys = tensor_of(attention.q), tensor_of(attention.k)
    return queries is not None and keys is not None and queries.shape[2] == keys.shape[2]


def _sources(node: Node, gemms: dict[Node, Gemm]) -> set[Node]:
    """What the nearest GEMMs before a node multiply."""
    found, seen, waiting = set(), set(), [node]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in gemms:
            found.add(gemms[node].x)
        else:
            waiting += node.all_input_nodes
    return found
