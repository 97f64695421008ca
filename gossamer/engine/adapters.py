"""LoRA adapters of an engine: by name, each in a slot of the runners' memory."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from os import PathLike
from typing import NamedTuple

from gossamer.engine.config import EngineConfig, check_adapter_name
from gossamer.engine.sequence import Sequence
from gossamer.models import Adapter, ModelConfig, read_adapter
from gossamer.models.lora import NO_ADAPTER

DEFAULT_RANK = 16  # of max_lora_rank, where adapters come later


class SetAdapter(NamedTuple):
    """What all ranks do: put this adapter into a slot."""

    slot: int
    adapter: Adapter


@dataclass(frozen=True)
class Loaded:
    """salt: of block hashes, as K and V depend on the adapter."""

    name: str
    slot: int = NO_ADAPTER
    salt: bytes = b""


BASE = Loaded("")  # the model itself


class UnknownAdapterError(ValueError):
    """There is no adapter of this name."""


class Adapters:
    """Names and slots. To be used between steps.

    put: writes an adapter into a slot, on all ranks. running: sequences that are not finished, as
    they change: their slots can be taken for another adapter only when they are.
    """

    def __init__(
        self,
        config: EngineConfig,
        put: Callable[[SetAdapter], None],
        running: Collection[Sequence],
    ) -> None:
        self._slots, self._rank = config.max_loras or 0, config.max_lora_rank or DEFAULT_RANK
        self._put, self._running = put, running
        self._loaded: dict[str, Loaded] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """In the order in which they came."""
        return tuple(self._loaded)

    def find(self, name: str | None) -> Loaded:
        """Raises UnknownAdapterError."""
        if name is None:
            return BASE
        if name not in self._loaded:
            raise UnknownAdapterError(f"lora is {name!r}; must be {_some_of(self._loaded)}")
        return self._loaded[name]

    def add(self, name: str, adapter: Adapter) -> None:
        """Requests may use it from now on. ValueError if there is no room for it."""
        check_adapter_name(name)
        if name in self._loaded:
            raise ValueError(f"the adapter {name!r} is loaded already; remove it first")
        _check_rank(name, adapter, self._rank)
        taken = {each.slot for each in self._loaded.values()}
        taken |= {seq.slot for seq in self._running} - {NO_ADAPTER}
        free = [slot for slot in range(self._slots) if slot not in taken]
        if not free:
            leaving = len(taken) - len(self._loaded)
            also = f", and {leaving} removed ones still answer requests" if leaving else ""
            raise ValueError(
                f"{len(self._loaded)} adapters are loaded{also}; max_loras is {self._slots}"
            )
        self._put(SetAdapter(free[0], adapter))
        self._loaded[name] = Loaded(name, free[0], adapter.digest)

    def remove(self, name: str) -> None:
        """New requests cannot use it; those that run do. Raises UnknownAdapterError."""
        self.find(name)
        del self._loaded[name]


def read_adapters(config: EngineConfig) -> tuple[EngineConfig, dict[str, Adapter]]:
    """The adapters of a config, which gets the sizes that they need. Before weights are loaded.

    Raises what `read_adapter` raises, and ValueError for a rank above max_lora_rank.
    """
    if not config.lora:
        return config, {}
    model = config.source().config
    found = {name: _read(name, folder, model) for name, folder in config.lora.items()}
    largest = max(adapter.rank for adapter in found.values())
    rank = largest if config.max_lora_rank is None else config.max_lora_rank
    for name, adapter in found.items():
        _check_rank(name, adapter, rank)
    count = len(found) if config.max_loras is None else config.max_loras
    return replace(config, max_loras=count, max_lora_rank=rank), found


def _read(name: str, folder: str | PathLike[str], model: ModelConfig) -> Adapter:
    try:
        return read_adapter(folder, model)
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"the adapter {name!r}: {error}") from None


def _check_rank(name: str, adapter: Adapter, most: int) -> None:
    if adapter.rank > most:
        raise ValueError(f"the adapter {name!r} has rank {adapter.rank}; max_lora_rank is {most}")


def _some_of(names: Collection[str]) -> str:
    return f"one of {', '.join(map(repr, names))}" if names else "None: no adapter is loaded"
