"""Weights as kernels want them: laid side by side or transposed once, and again if they change."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node


@dataclass(frozen=True, eq=False)
class _Recipe:
    """buffer = make(sources). places: of the sources among the graph's inputs."""

    buffer: Tensor
    places: tuple[int, ...]
    make: Callable[[Sequence[Tensor]], Tensor]


class Watch:
    """Inputs whose values something was made of, and how often they had been written to."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Tensor, int]] = {}  # by place among the inputs

    def note(self, place: int, tensor: Tensor) -> None:
        self._seen[place] = (tensor, tensor._version)

    def stale(self, args: Sequence[Any]) -> set[int]:
        """Places of inputs that are other tensors now, or were written to."""
        return {
            place
            for place, (tensor, version) in self._seen.items()
            if args[place] is not tensor or tensor._version != version
        }


class PreparedWeights:
    """Tensors that a lowered graph reads beside its inputs, made of them.

    Each is a buffer of the graph's module. `refresh`, before every call, makes those anew whose
    sources are other tensors than before, or were written to.
    """

    def __init__(self, module: GraphModule, static: Mapping[Node, Tensor]) -> None:
        self._module = module
        self._static = static
        inputs = module.graph.find_nodes(op="placeholder")
        self._places = {node: i for i, node in enumerate(inputs)}
        self._recipes: list[_Recipe] = []
        self._known: dict[Any, Node] = {}
        self._watch = Watch()
        self._inputs_end = inputs[-1] if inputs else None

    @property
    def nbytes(self) -> int:
        return sum(recipe.buffer.nbytes for recipe in self._recipes)

    def rows(self, weight: Node, transposed: bool) -> Node:
        """weight [n, k], or [k, n] where `transposed`, as [n, k] with contiguous rows."""
        if not transposed:
            return weight if self._static[weight].stride(1) == 1 else self.joined([weight], [False])
        return self.joined([weight], [True])

    def joined(self, weights: Sequence[Node], transposed: Sequence[bool]) -> Node:
        """Rows of the weights one after the other; of those that lie as [k, n], columns."""
        turns = tuple(transposed)

        def make(sources: Sequence[Tensor]) -> Tensor:
            rows = [w.t() if turn else w for w, turn in zip(sources, turns, strict=True)]
            return torch.cat(rows).contiguous()

        return self._made(("cat", *weights, turns), weights, make)

    def joined_biases(self, biases: Sequence[Node | None], sizes: Sequence[int]) -> Node | None:
        """Biases one after the other, zeros where there is none; None if there is none at all."""
        given = [bias for bias in biases if bias is not None]
        if not given:
            return None
        lengths = tuple(sizes)
        has = tuple(bias is not None for bias in biases)

        def make(sources: Sequence[Tensor]) -> Tensor:
            left = iter(sources)
            parts = zip(has, lengths, strict=True)
            return torch.cat([next(left) if own else sources[0].new_zeros(n) for own, n in parts])

        return self._made(("bias", *biases, lengths), given, make)

    def constant(self, key: Any, make: Callable[[], Tensor]) -> Node:
        """A tensor that depends on no input, such as a map of tiles."""
        if key not in self._known:
            self._known[key] = self._buffer(make())
        return self._known[key]

    def refresh(self, args: Sequence[Any]) -> None:
        """Before a call with these inputs."""
        stale = self._watch.stale(args)
        if not stale:
            return
        for place in stale:
            self._watch.note(place, args[place])
        for recipe in self._recipes:
            if stale & set(recipe.places):
                with torch.no_grad():
                    recipe.buffer.copy_(recipe.make([args[place] for place in recipe.places]))

    def _made(
        self, key: Any, sources: Sequence[Node], make: Callable[[Sequence[Tensor]], Tensor]
    ) -> Node:
        if key not in self._known:
            # Not tensors of inference mode: they could not be written to outside of it.
            with torch.inference_mode(False), torch.no_grad():
                tensor = make([self._static[node].detach() for node in sources]).clone()
            self._known[key] = self._buffer(tensor)
            places = tuple(self._places[node] for node in sources)
            self._recipes.append(_Recipe(tensor, places, make))
            for node in sources:
                self._watch.note(self._places[node], self._static[node])
        return self._known[key]

    def _buffer(self, tensor: Tensor) -> Node:
        name = f"gossamer_{len(self._known)}"
        self._module.register_buffer(name, tensor, persistent=False)
        graph = self._module.graph
        first = next(iter(graph.nodes)) if self._inputs_end is None else self._inputs_end.next
        with graph.inserting_before(first):
            node = graph.get_attr(name)
        _declare_static(self._module, name)
        return node


def _declare_static(module: GraphModule, name: str) -> None:
    """AOTAutograd wants to know where each buffer of a graph of Dynamo's comes from."""
    sources = getattr(module, "_param_name_to_source", None)
    if sources is not None:
        from torch._dynamo.source import ConstantSource  # noqa: PLC0415 - imports Dynamo

        sources[name] = ConstantSource(name)
