"""What a deployment is to be: model, engines, replicas, and what each of them takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from gossamer.engine import EngineConfig
from gossamer.server.engine_process import EngineStart
from gossamer.server.settings import Limits, Settings

LIMITS, SETTINGS = "limits", "settings"


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
        for name in ("replicas", "api_replicas"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; must be at least 1")
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(
                f"max_replicas is {self.max_replicas}; must be at least {self.replicas}, replicas"
            )
        if not self.target_requests > 0:
            raise ValueError(f"target_requests is {self.target_requests}; must be above 0")
        if not self.cpus > 0:
            raise ValueError(f"cpus is {self.cpus}; must be above 0")
        if not self.caches:
            raise ValueError("caches is empty; must name at least one KV cache")
        self.engine_config  # noqa: B018 - refuses what no engine can be

    @classmethod
    def parse(cls, args: Mapping[str, Any]) -> Self:
        """From the `args` of a Ray Serve config file: plain values, `limits` inside `settings`."""
        values = dict(args)
        for name, kind in (("routing", Routing), (SETTINGS, Settings)):
            if name in values:
                values[name] = _made(name, kind, values[name])
        if "model" in values and SETTINGS not in values:
            values[SETTINGS] = Settings(model=str(values["model"]).rstrip("/").rpartition("/")[2])
        if isinstance(values.get("caches"), str):
            values["caches"] = (values["caches"],)
        values["caches"] = tuple(values.get("caches", ("dense",)))
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
        return EngineStart(self.model, self.caches, options, self.settings.limits.queue, None)

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
        on_gpus = present.get("GPU", 0) > 0 and self.engine_config.device != "cpu"
        return {"CPU": self.cpus, "GPU": 1} if on_gpus else {"CPU": self.cpus}


def _made(where: str, kind: Any, values: Any) -> Any:
    """A dataclass of a mapping; TypeError names keys that it does not know."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{where} is {values!r}; must be a mapping")
    known = [each.name for each in fields(kind)]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise TypeError(f"{where} has {unknown[0]!r}; must be some of {', '.join(known)}")
    values = dict(values)
    if kind is Settings:
        if LIMITS in values:
            values[LIMITS] = _made(LIMITS, Limits, values[LIMITS])
        for name in ("origins", "hosts"):
            values[name] = tuple(values.get(name, ()))
    return kind(**values)
