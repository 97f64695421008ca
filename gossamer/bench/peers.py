"""Which records of a point are compared: the backend that users get, and the fastest peer."""

from collections.abc import Iterable

from gossamer.bench.record import Record
from gossamer.ops import BACKENDS
from gossamer.ops.backends import PREFERENCE


class Peers:
    """The fastest peers among some records.

    `peers(record)` is the fastest at the record's own point; where there is none, the fastest at
    the same op, dtype and shape, as for caches of many kinds with one dense cache. Else None.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._fastest: dict[tuple[object, ...], Record] = {}
        for record in records:
            if record.backend not in BACKENDS:
                for key in (record.point, record.point[:3]):
                    known = self._fastest.get(key, record)
                    self._fastest[key] = min(known, record, key=lambda r: r.median_ms)

    def __call__(self, record: Record) -> Record | None:
        return self._fastest.get(record.point) or self._fastest.get(record.point[:3])


def defaults(records: Iterable[Record]) -> list[Record]:
    """At every point the record of the backend that users get."""
    found: dict[tuple[object, ...], Record] = {}
    for record in records:
        if record.backend in BACKENDS:
            known = found.get(record.point, record)
            found[record.point] = min(known, record, key=_preference)
    return list(found.values())


def _preference(record: Record) -> int:
    return PREFERENCE["cpu" if record.backend == "cpu" else "cuda"].index(record.backend)
