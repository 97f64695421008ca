"""Workloads by name, so that a number can be repeated and compared."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gossamer.workloads.requests import RequestMix

WORKLOADS: dict[str, RequestMix] = {
    # Prompts and answers of all lengths at once: what batches have to cope with.
    "mixed": RequestMix(requests=256, inputs=(200, 2000), outputs=(64, 256)),
    # The same in little: for small GPUs, and quick.
    "small": RequestMix(requests=400, inputs=(100, 1000), outputs=(50, 200)),
    # A few assistants, each with its system prompt, and many short questions.
    "chat": RequestMix(requests=200, inputs=(16, 256), outputs=(32, 256), prefix=1000, prefixes=8),
    # Documents: few sequences, and nearly all bytes are KV cache.
    "long": RequestMix(requests=32, inputs=(8000, 8000), outputs=(72, 72)),
}


def numbers_of(
    name: str | None, defaults: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of a RequestMix: what is given, else the workload's, else the defaults.

    Raises ValueError for an unknown name.
    """
    if name is not None and name not in WORKLOADS:
        raise ValueError(f"workload is {name!r}; must be one of {', '.join(WORKLOADS)}")
    base = defaults if name is None else asdict(WORKLOADS[name])
    return {**base, **given}
