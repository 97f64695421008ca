"""Checks and names of the settings of tasks."""

import hashlib
from dataclasses import asdict
from typing import Any


def at_least(task: Any, **least: int) -> None:
    """Raises ValueError for the first field of a task that is below its least value."""
    for name, low in least.items():
        value = getattr(task, name)
        if type(value) is not int or value < low:
            raise ValueError(f"{name} is {value!r}; must be an integer of at least {low}")


def digest_fields(task: Any, *long: str) -> dict[str, Any]:
    """The fields of a task as settings, with digests in place of long texts."""
    settings: dict[str, Any] = asdict(task)
    for name in long:
        text = settings.pop(name)
        settings[name] = hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""
    return settings
