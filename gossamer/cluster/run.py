"""`gossamer serve --ray`: the application on a cluster, from its start until a signal."""

import logging
import signal
import threading
from types import FrameType

import ray
from ray import serve
from ray.serve.config import HTTPOptions

from gossamer.cluster.app import application
from gossamer.cluster.config import ClusterConfig
from gossamer.server.logs import set_up_log
from gossamer.server.sockets import bind

log = logging.getLogger("gossamer.server")
NAME = "gossamer"


def serve_on_ray(config: ClusterConfig, host: str, port: int, address: str | None = None) -> None:
    """Serve until a signal, on the cluster at `address`, or on one of this machine alone.

    Raises ValueError if the cluster cannot hold the replicas or has such an application, OSError
    for an address in use.
    """
    set_up_log(config.settings.log_format)
    stop = threading.Event()

    def stopped(number: int, frame: FrameType | None) -> None:
        stop.set()

    try:
        url = start(config, host, port, address)
        for number in (signal.SIGINT, signal.SIGTERM):  # now: Ray has handlers of its own
            signal.signal(number, stopped)
        log.info("listening on %s, %d replicas", url, config.replicas)
        stop.wait()
        log.info("stopping")
    finally:
        end()


def start(config: ClusterConfig, host: str, port: int, address: str | None = None) -> str:
    """The application, ready for requests; its URL.

    On a cluster where Ray Serve runs already, that has an address of its own, which counts.
    """
    if address is None:
        with bind(host, port)[0] as free:  # says at once if it cannot be had
            port = int(free.getsockname()[1])
    connect(address)
    deployed = application(config)
    if NAME in serve.status().applications:
        ray.shutdown()
        raise ValueError(f"the cluster at {address!r} has an application {NAME!r} already")
    serve.start(http_options=HTTPOptions(host=host, port=port))
    try:
        serve.run(deployed, name=NAME, route_prefix="/")
    except RuntimeError as error:  # without the reason, which is in the log of a replica
        raise ValueError(f"{error} {_reason()}") from None
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"


def _reason() -> str:
    """The last line of why a deployment does not start."""
    deployments = serve.status().applications[NAME].deployments.values()
    messages = [each.message for each in deployments if "Error" in each.message]
    return messages[0].strip().splitlines()[-1] if messages else ""


def connect(address: str | None) -> None:
    """To a running cluster, or start one of this machine alone."""
    try:
        if address is None:
            ray.init("local", include_dashboard=False)
        else:
            ray.init(address)
    except ConnectionError as error:
        raise OSError(f"there is no Ray cluster at {address!r}: {error}") from None


def end() -> None:
    """The application, of which requests that run may finish; with a cluster of our own, that."""
    if ray.is_initialized():
        if NAME in serve.status().applications:
            serve.delete(NAME)
        ray.shutdown()
