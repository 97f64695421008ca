"""Ranks as processes that torchrun has started, on one host or several: all run the same script.

In rank 0 `LLM(...)` is as always. In the others it serves rank 0 until that closes its own, and
ends the process: what comes after it in the script runs once.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

from torch.distributed import rendezvous  # type: ignore[attr-defined]

from gossamer.engine import worker
from gossamer.engine.config import EngineConfig
from gossamer.engine.launch_spawn import LOOPBACK
from gossamer.engine.link import Address, Link, accept, is_loopback, listen
from gossamer.engine.workers import Launch

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
STORE_TIMEOUT = timedelta(hours=1)  # for rank 0 to be there: it may calibrate the model first
ENGINES, ADDRESS = "gossamer/engines", "gossamer/address"  # keys in torchrun's store


@dataclass(frozen=True)
class Place:
    """Where torchrun has put this process."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    master: str

    @classmethod
    def of(cls, environment: Mapping[str, str], config: EngineConfig) -> Self:
        """ValueError without torchrun, and for another number of processes than of ranks."""
        if missing := [name for name in VARIABLES if name not in environment]:
            raise ValueError(
                f"launcher is torchrun, and the environment has no {missing[0]}; "
                "start the script by torchrun"
            )
        rank, size, local_rank, local_size = (int(environment[name]) for name in VARIABLES[:4])
        place = cls(rank, size, local_rank, local_size, environment["MASTER_ADDR"])
        if place.size != config.tensor_parallel_size:
            raise ValueError(
                f"tensor_parallel_size is {config.tensor_parallel_size}, and torchrun started "
                f"{place.size} processes; must be as many, or launcher must be spawn or ray"
            )
        return place

    @property
    def host(self) -> str:
        """Where ranks reach rank 0. ValueError for an address that other hosts do not."""
        if self.local_size == self.size:
            return LOOPBACK
        if is_loopback(self.master):
            raise ValueError(
                f"MASTER_ADDR is {self.master}, and ranks are on several hosts; must be an address "
                "that all of them reach, see torchrun's --local-addr"
            )
        return self.master

    def store(self) -> Any:
        """That all processes of torchrun share."""
        store, _, _ = next(rendezvous("env://", timeout=STORE_TIMEOUT))
        return store


def serve_if_above_0(config: EngineConfig) -> None:
    """Returns in rank 0, and where torchrun is not the launcher."""
    if config.tensor_parallel_size == 1 or config.resolved_launcher != "torchrun":
        return
    place = Place.of(os.environ, config)
    if place.rank == 0:
        return
    host, port, token = place.store().get(ADDRESS).decode().split()
    link = Link.to(Address(host, int(port), token), place.rank)
    link.leave_with_peer()
    worker.leave(worker.run(link.pipe, gpu=place.local_rank))


def launch(config: EngineConfig) -> Launch:
    """For rank 0. ValueError for a second engine: the other ranks have ended with the first."""
    place = Place.of(os.environ, config)
    host, store = place.host, place.store()
    if store.add(ENGINES, 1) > 1:
        raise ValueError(
            "the other ranks have served an LLM of this run of torchrun, and ended with it; "
            "start a new run, or use launcher='spawn'"
        )
    with listen(host) as server:
        address = Address(host, server.getsockname()[1])
        store.set(ADDRESS, f"{host} {address.port} {address.token}")
        members = accept(server, address.token, range(1, place.size), check=lambda: None)
    return Launch(members, host, gpu=place.local_rank)
