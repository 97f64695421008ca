"""Which replica a prompt is sent to: one that has seen how it begins, unless that one is busy."""

import zlib
from collections.abc import Collection, Mapping, Sequence

from gossamer.ops.kv_block import BLOCK_TOKENS


def block_names(ids: Sequence[int], lora: str | None = None) -> list[int]:
    """A name for each complete block of a prompt, of all tokens up to its end and its adapter."""
    names, name = [], 0 if lora is None else hash(lora)
    for end in range(BLOCK_TOKENS, len(ids) + 1, BLOCK_TOKENS):
        name = hash((name, tuple(ids[end - BLOCK_TOKENS : end])))
        names.append(name)
    return names


class PrefixIndex:
    """Remembers which replicas had which blocks; the least recently used `most` are forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._replicas: dict[int, set[str]] = {}  # in the order of their use

    def add(self, names: Sequence[int], replica: str, among: Collection[str]) -> None:
        """A replica got a prompt of these blocks. among: the replicas that there are."""
        for name in reversed(names):  # so that the end of a prompt is forgotten before its start
            known = self._replicas.pop(name, set())
            self._replicas[name] = {replica, *known.intersection(among)}
        while len(self._replicas) > self._most:
            del self._replicas[next(iter(self._replicas))]

    def matches(self, names: Sequence[int]) -> dict[str, int]:
        """How many blocks of the prompt's beginning each replica has had."""
        found: dict[str, int] = {}
        for count, name in enumerate(names):
            having = {r for r in self._replicas.get(name, ()) if found.get(r, 0) == count}
            if not having:
                break
            found |= dict.fromkeys(having, count + 1)
        return found


def choose(
    ids: Sequence[int],
    matches: Mapping[str, int],
    loads: Mapping[str, int],
    *,
    slack: int,
    share: float,
) -> str:
    """The replica for a prompt. loads: prompts of each replica that are not finished.

    Of those with at most `slack` more than the least busy one, that with most of the prompt's
    blocks, if these are `share` of the prompt; else the least busy. Equals are told apart by the
    prompt's beginning: it stays where it is, and several API processes come to the same choice.
    """
    lowest = min(loads.values())
    able = [replica for replica, load in loads.items() if load <= lowest + slack]
    most = max(matches.get(replica, 0) for replica in able)
    if most and most * BLOCK_TOKENS >= share * len(ids):
        able = [replica for replica in able if matches.get(replica, 0) == most]
    else:
        able = [replica for replica in able if loads[replica] == lowest]
    begin = hash(tuple(ids[:BLOCK_TOKENS]))
    return min(able, key=lambda replica: zlib.crc32(f"{begin} {replica}".encode()))
