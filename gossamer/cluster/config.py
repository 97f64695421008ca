"""What a deployment is to be: model, engines, replicas, and what each of them takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from gossamer.engine import EngineConfig
from gossamer.engine.config import parse_bytes
from gossamer.server.engine_process import EngineStart
from gossamer.server.keys import Keys
from gossamer.server.settings import Limits, Settings


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Which replica gets a prompt. Raises ValueError for values out of range.

    slack: prompts that a replica may have more than the least busy one, and still be preferred.
    share: of a prompt's blocks that a replica must have seen to be preferred for that.
    blocks: that are remembered; the least recently used are forgotten.
    """

    slack: int = 8
    share: float = 0.25
    blocks: int = 1 << 18

    def __post_init__(self) -> None:
        if self.slack < 0 or self.blocks < 1:
            raise ValueError(
                f"slack is {self.slack} and blocks {self.blocks}; must be at least 0 and 1"
            )
        if not 0 <= self.share <= 1:
            raise ValueError(f"share is {self.share}; must be 0 to 1")


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Raises TypeError for unknown options and ValueError for values out of range.

    model, caches, engine: of each replica, as `gossamer serve` takes them; engine: options of
    EngineConfig. replicas: at first and at least; max_replicas: None for no autoscaling.
    target_requests: that run on a replica on average before there are more replicas.
    api_replicas: processes for HTTP, JSON and text. cpus: of each rank of a replica, which has
    a GPU, too, where the cluster has some.
    """

    model: str
    caches: tuple[str, ...] = ("dense",)
    engine: Mapping[str, Any] = field(default_factory=dict)
    settings: Settings = field(default_factory=lambda: Settings(model="model"))
    replicas: int = 1
    max_replicas: int | None = None
    target_requests: float = 32.0
    api_replicas: int = 1
    cpus: float = 1.0
    routing: Routing = field(default_factory=Routing)

    def __post_init__(self) -> None:
        for name, least in (("replicas", 1), ("api_replicas", 1), ("max_replicas", self.replicas)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                raise ValueError(f"{name} is {value!r}; must be an integer of at least {least}")
        for name in ("target_requests", "cpus"):
            number: Any = getattr(self, name)
            if not isinstance(number, int | float) or not number > 0:
                raise ValueError(f"{name} is {number!r}; must be a number above 0")
        if not self.caches or not all(isinstance(kv, str) for kv in self.caches):
            raise ValueError(f"caches is {self.caches!r}; must name at least one KV cache")
        if self.settings.profiles is not None:
            raise ValueError(f"profiles is {self.settings.profiles}; cannot be had of replicas")
        if self.settings.lora_dir is not None:
            raise ValueError(
                f"lora_dir is {self.settings.lora_dir}; adapters of replicas are those of lora"
            )
        if Keys(self.settings.api_key, self.settings.api_keys).limited:
            raise ValueError(
                f"{self.settings.api_keys} has limits per minute, which are not counted over "
                "replicas; must have none"
            )
        if self.ranks > 1 and self.engine_config.launcher not in ("auto", "ray"):
            raise ValueError(
                f"launcher is {self.engine_config.launcher!r}; must be ray for ranks of replicas"
            )

    @classmethod
    def parse(cls, args: Mapping[str, Any]) -> Self:
        """From the `args` of a Ray Serve config file: plain values, `limits` inside `settings`."""
        values = dict(args)
        if "routing" in values:
            values["routing"] = _made("routing", Routing, values["routing"])
        values["settings"] = _settings(values.get("model", ""), values.get("settings", {}))
        caches = values.get("caches", "dense")
        values["caches"] = (
            (caches,) if isinstance(caches, str) else tuple(_strings("caches", caches))
        )
        made: Self = _made("args", cls, values)
        return made

    @property
    def engine_config(self) -> EngineConfig:
        """Of the first cache."""
        return EngineConfig(model=self.model, kv=self.caches[0], **self.engine)

    @property
    def start(self) -> EngineStart:
        """What a replica loads. Its ranks are actors of their own, maybe on several hosts."""
        options = dict(self.engine)
        if self.ranks > 1 and self.engine_config.launcher == "auto":
            options["launcher"] = "ray"
        queue, log_format = self.settings.limits.queue, self.settings.log_format
        return EngineStart(self.model, self.caches, options, queue, None, log_format)

    @property
    def ranks(self) -> int:
        """Of a replica."""
        return self.engine_config.tensor_parallel_size

    @property
    def most_requests(self) -> int:
        """That a replica runs or keeps waiting."""
        return self.engine_config.max_num_seqs + self.settings.limits.queue

    def bundle(self, present: Mapping[str, float]) -> dict[str, float]:
        """What a rank takes of a cluster that has so many CPUs and GPUs."""
        device = self.engine_config.device
        on_gpus = device.startswith("cuda") or (device == "auto" and present.get("GPU", 0) > 0)
        return {"CPU": self.cpus, "GPU": 1} if on_gpus else {"CPU": self.cpus}

    def check(self, present: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> None:
        """ValueError if the replicas need more than a cluster has, all together or on a node."""
        count, bundle = self.replicas * self.ranks, self.bundle(present)
        needed = {name: count * each for name, each in bundle.items()}
        if any(present.get(name, 0) < amount for name, amount in needed.items()):
            raise ValueError(
                f"replicas is {self.replicas}, which need {_listed(needed)}; the cluster has "
                f"{_listed({name: present.get(name, 0) for name in needed})}"
            )
        if not any(all(n.get(kind, 0) >= each for kind, each in bundle.items()) for n in nodes):
            raise ValueError(f"a rank needs {_listed(bundle)} on one node; no node has as many")


def _listed(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


def _made(where: str, kind: Any, values: Any) -> Any:
    """A dataclass of a mapping; TypeError names keys that it does not know."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{where} is {values!r}; must be a mapping")
    known = [each.name for each in fields(kind)]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise TypeError(f"{where} has {unknown[0]!r}; must be some of {', '.join(known)}")
    return kind(**values)


def _settings(model: Any, values: Any) -> Settings:
    """The name that requests use is by default that of the model's folder or file."""
    if not isinstance(values, Mapping):
        raise TypeError(f"settings is {values!r}; must be a mapping")
    limits = dict(values.get("limits", {}))
    if "body" in limits:
        limits["body"] = parse_bytes("body", limits["body"])
    made = {"model": str(model).rstrip("/").rpartition("/")[2], **values}
    made["limits"] = _made("limits", Limits, limits)
    for name in ("api_keys", "lora_dir"):
        if made.get(name) is not None:
            made[name] = Path(made[name])
    for name in ("origins", "hosts"):
        made[name] = tuple(_strings(name, values.get(name, ())))
    settings: Settings = _made("settings", Settings, made)
    return settings


def _strings(name: str, values: Any) -> Sequence[str]:
    if not isinstance(values, list | tuple):
        raise TypeError(f"{name} is {values!r}; must be a list")
    return values
