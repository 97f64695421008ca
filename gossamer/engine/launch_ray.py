"""Ranks as Ray actors in a placement group, one bundle for each; rank 0 is the calling process.

A caller that is in a placement group itself, like a replica of Ray Serve, has the first bundle of
it, and ranks take the others. Otherwise a group is made, whose first bundle is on this host.
"""

import os
from contextlib import ExitStack
from functools import partial
from typing import Any

from gossamer.engine import worker
from gossamer.engine.config import EngineConfig
from gossamer.engine.launch_spawn import LOOPBACK
from gossamer.engine.link import Address, Link, accept, listen
from gossamer.engine.workers import Launch, WorkerDiedError
from gossamer.kv.extras import import_extra

PATIENCE = 60.0  # seconds for resources that others use to become free


class RankActor:
    """What runs in an actor."""

    def serve(self, address: Address, rank: int) -> None:
        """Until rank 0 wants no more. Its one GPU is the only one that it sees."""
        link = Link.to(address, rank)
        link.leave_with_peer()
        worker.run(link.pipe, gpu=0)
        link.hang_up()

    def gpu(self) -> str:
        """Which one Ray has set aside for it."""
        return str(import_extra("ray", "ray").get_gpu_ids()[0])


def launch(config: EngineConfig) -> Launch:
    """Raises ValueError and TimeoutError where the cluster has too little, and says what it has."""
    ray = import_extra("ray", "ray")
    size, unit = config.tensor_parallel_size, "GPU" if config.device_type == "cuda" else "CPU"
    with ExitStack() as ends:
        if not ray.is_initialized():
            ray.init()
            ends.callback(ray.shutdown)
        group = ray.util.get_current_placement_group()
        gpu = 0
        if group is None:
            group = _placement_group(ray, unit, size, ends)
            if unit == "GPU":
                gpu = _visible(ray.get(_actor(ray, group, 0, ends).gpu.remote()))
        elif group.bundle_count < size:
            raise ValueError(
                f"tensor_parallel_size is {size}, and the placement group has "
                f"{group.bundle_count} bundles; must be one for each rank"
            )
        actors = {rank: _actor(ray, group, rank, ends) for rank in range(1, size)}
        host = _host(ray, group)
        with listen(host) as server:
            address = Address(host, server.getsockname()[1])
            lives = [actor.serve.remote(address, rank) for rank, actor in actors.items()]
            members = accept(server, address.token, actors, lambda: _check(ray, lives))
        return Launch(members, host, gpu=gpu, end=partial(_end, ray, ends.pop_all()))


def _end(ray: Any, ends: ExitStack) -> None:
    if ray.is_initialized():  # else actors and group have ended with it
        ends.close()


def _placement_group(ray: Any, unit: str, size: int, ends: ExitStack) -> Any:
    """A bundle for each rank, as near to each other as there is room."""
    needed = f"tensor_parallel_size is {size}, which takes {size} {unit}s"
    present = ray.cluster_resources().get(unit, 0)
    if present < size:
        raise ValueError(f"{needed}; the Ray cluster has {present:g}")
    node = ray.util.get_node_ip_address()
    bundles: list[dict[str, float]] = [{unit: 1} for _ in range(size)]
    bundles[0][f"node:{node}"] = 0.001
    group = ray.util.placement_group(bundles, strategy="PACK")
    ends.callback(ray.util.remove_placement_group, group)
    if not group.wait(PATIENCE):
        free = ray.available_resources().get(unit, 0)
        raise TimeoutError(
            f"{needed}, one of them on {node}; of the {present:g} of the Ray cluster {free:g} were "
            f"free for {PATIENCE:.0f} seconds"
        )
    return group


def _actor(ray: Any, group: Any, bundle: int, ends: ExitStack) -> Any:
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
        group, placement_group_bundle_index=bundle
    )
    takes = group.bundle_specs[bundle]
    resources = {"num_cpus": takes.get("CPU", 0), "num_gpus": takes.get("GPU", 0)}
    actor = ray.remote(RankActor).options(**resources, scheduling_strategy=strategy).remote()
    ends.callback(ray.kill, actor)
    return actor


def _visible(gpu: str) -> int:
    """The number by which this process knows a GPU of its host."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",").index(gpu) if visible else int(gpu)


def _host(ray: Any, group: Any) -> str:
    """Where all ranks reach this process."""
    nodes = set(ray.util.placement_group_table(group)["bundles_to_node_id"].values())
    if nodes == {ray.get_runtime_context().get_node_id()}:
        return LOOPBACK
    return str(ray.util.get_node_ip_address())


def _check(ray: Any, lives: list[Any]) -> None:
    """WorkerDiedError when an actor has ended, which it does not before it is told to."""
    ended, _ = ray.wait(lives, timeout=0)
    if ended:
        rank = lives.index(ended[0]) + 1
        try:
            ray.get(ended[0])
        except ray.exceptions.RayError as error:
            raise WorkerDiedError(f"rank {rank} failed in its Ray actor: {error}") from error
        raise WorkerDiedError(f"rank {rank} ended in its Ray actor before it had begun")
