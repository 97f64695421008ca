"""Names for graphs, masks and machines, by which tuned plans are found again."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from gossamer.bench.record import describe_device, versions
from gossamer.fusion.patterns import value_of
from gossamer.masks import Mask


def graph_signature(module: GraphModule) -> str:
    """What is computed from which shapes: the same in every process, whatever things are called."""
    places = {node: i for i, node in enumerate(module.graph.nodes)}
    lines = (f"{node.op} {_target(node)} {_arguments(node, places)}" for node in places)
    return _digest(lines)


def shapes_of(module: GraphModule) -> str:
    """Shapes and dtypes of what the user passes, for the reader of a cache."""
    inputs = module.graph.find_nodes(op="placeholder")
    own = [node for node in inputs if not node.meta.get("tensor_dict")]
    return ", ".join(_looks(value_of(node)) for node in own)


def mask_signature(mask: Any) -> str:
    """Equal for masks that hide the same by their definition."""
    return "" if mask is None else _digest([_definition(mask)])


def machine(device: torch.device) -> dict[str, str]:
    """Device and versions that a measurement depends on."""
    found = versions()
    names = ("gossamer", "torch", "cuda", "triton")
    kept: dict[str, str] = {name: found[name] for name in names if name in found}
    kept["device"] = describe_device(str(device))
    return kept


def digest_of(values: Any) -> str:
    return _digest([json.dumps(values, sort_keys=True)])


def _digest(lines: Iterable[str]) -> str:
    found = hashlib.sha256()
    for line in lines:
        found.update(line.encode() + b"\n")
    return found.hexdigest()[:24]


def _target(node: Node) -> str:
    if node.op == "placeholder":
        return _looks(value_of(node))
    if node.op != "call_function":
        return str(node.target)
    module, name = (getattr(node.target, key, "") for key in ("__module__", "__name__"))
    return f"{module}.{name}" if name else str(node.target)


def _arguments(node: Node, places: dict[Node, int]) -> str:
    numbered = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: f"%{places[n]}")
    return "" if node.op == "placeholder" else str(numbered)


def _looks(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return str(value)


def _definition(value: Any) -> str:
    """A mask's type and parameters; numbers of its tensors."""
    if isinstance(value, Tensor):
        content = value.detach().cpu().contiguous()
        digest = hashlib.sha256(content.view(torch.uint8).numpy().tobytes()).hexdigest()
        return f"{_looks(value)}:{digest}"
    if isinstance(value, Mask):
        values: Any = fields(cast(Any, value)) if is_dataclass(value) else ()
        inner = ", ".join(_definition(getattr(value, f.name)) for f in values)
        return f"{type(value).__name__}({inner})"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_definition, value))}]"
    return repr(value)
