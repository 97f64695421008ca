"""The server that is measured, as it describes itself."""

from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Target:
    """A server, and its stats."""

    url: str
    key: str | None
    stats: dict[str, Any]

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def engine(self, kv: str | None) -> dict[str, Any]:
        """Stats of the engine with this cache; of the first if there is none."""
        engines: list[dict[str, Any]] = self.stats["engines"]
        return next((engine for engine in engines if engine["kv"] == kv), engines[0])


def probe(url: str, key: str | None = None, model: str | None = None) -> Target:
    """The server at this address. model: the one that it should serve; None for any.

    Raises ConnectionError where no Gossamer answers, ValueError for another model.
    """
    url = url.rstrip("/").removesuffix("/v1")
    try:
        answer = httpx.get(
            f"{url}/v1/gossamer/stats", headers=Target(url, key, {}).headers, timeout=30
        )
        if answer.status_code == 401:
            raise ConnectionError(f"{url}: the server wants another API key: --api-key")
        answer.raise_for_status()
        found = Target(url, key, answer.json())
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ConnectionError(f"{url}: no Gossamer server answers there: {error}") from None
    if model is not None and model != found.stats["model"]:
        raise ValueError(f"model is {model!r}; the server at {url} has {found.stats['model']!r}")
    return found
