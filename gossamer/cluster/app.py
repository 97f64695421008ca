"""The application of Ray Serve: API processes in front of engine replicas."""

from dataclasses import asdict
from functools import partial
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.schema import LoggingConfig

from gossamer.cluster.config import ClusterConfig
from gossamer.cluster.link import ReplicaLink
from gossamer.cluster.replica import EngineReplica
from gossamer.cluster.router import PrefixRouter
from gossamer.server.app import create_api
from gossamer.server.gateway import Gateway
from gossamer.server.logs import set_up_log

ENGINE, API = "engine", "api"
HEALTH_SECONDS = 2.0  # between two checks of a replica
STEP_SECONDS = 30.0  # that a step may take; Ray Serve replaces a replica that is silent three times
LOGGING = LoggingConfig(enable_access_log=False)  # the API has a line for each request


def build(args: dict[str, Any]) -> serve.Application:
    """For `import_path: gossamer.cluster.app:build` of a Ray Serve config file."""
    return application(ClusterConfig.parse(args))


def application(config: ClusterConfig) -> serve.Application:
    """Ready for `serve.run`. Raises ValueError if the cluster cannot hold it."""
    present = ray.cluster_resources()
    config.check(present, [node["Resources"] for node in ray.nodes() if node["Alive"]])
    bundle = config.bundle(present)
    scaling: dict[str, Any] = {"num_replicas": config.replicas}
    if config.max_replicas is not None:
        autoscaling = AutoscalingConfig(
            min_replicas=config.replicas,
            max_replicas=config.max_replicas,
            target_ongoing_requests=config.target_requests,
        )
        scaling = {"autoscaling_config": autoscaling}
    ranks = {"placement_group_bundles": [bundle] * config.ranks} if config.ranks > 1 else {}
    limits = config.settings.limits
    replica = serve.deployment(EngineReplica).options(
        name=ENGINE,
        ray_actor_options={"num_cpus": bundle["CPU"], "num_gpus": bundle.get("GPU", 0)},
        max_ongoing_requests=config.most_requests,
        # That wait in an API process until a replica has a place: when all queues are full.
        max_queued_requests=config.most_requests * (config.max_replicas or config.replicas),
        logging_config=LOGGING,
        request_router_config=RequestRouterConfig(
            request_router_class=PrefixRouter, request_router_kwargs=asdict(config.routing)
        ),
        health_check_period_s=HEALTH_SECONDS,
        health_check_timeout_s=STEP_SECONDS,
        graceful_shutdown_timeout_s=max(1.0, limits.drain),
        **scaling,
        **ranks,
    )
    api = serve.deployment(serve.ingress(_builder(config))()).options(
        name=API,
        num_replicas=config.api_replicas,
        # As many as connections want: the engines' queue is what is bounded.
        max_ongoing_requests=1 << 20,
        max_surge_percent=100,  # of an update: the old one answers until the new one can
        ray_actor_options={"num_cpus": 0},  # they take little, and a laptop has few to give
        logging_config=LOGGING,
        graceful_shutdown_timeout_s=max(1.0, limits.drain),
    )
    return api.bind(replica.bind(config.start))


def _builder(config: ClusterConfig) -> Any:
    def api() -> FastAPI:
        set_up_log(config.settings.log_format)
        name = serve.get_replica_context().app_name
        handle = serve.get_deployment_handle(ENGINE, app_name=name)
        settings = config.settings
        link = partial(ReplicaLink, handle, config.start)
        return create_api(Gateway(link, settings.limits), settings)

    return api
