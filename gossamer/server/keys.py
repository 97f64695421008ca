"""API keys: one from the command line, and those of a file with names and limits."""

import hashlib
import hmac
import logging
import time
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from gossamer.ops.checks import nearest
from gossamer.server.errors import APIError

log = logging.getLogger("gossamer.server")
CHECK_SECONDS = 1.0  # between two looks whether the file has changed
ONLY = "default"  # the name of --api-key
DIGITS = 64  # of a SHA-256 in hex


class Use(NamedTuple):
    """Who a request is counted for, and what that key may use in a minute; None for no limit."""

    key: str
    requests: int | None
    tokens: int | None


@dataclass(frozen=True)
class Key:
    """digest: SHA-256 of the key, which itself is not kept. admin: may change what the server does.

    Raises ValueError for limits below 1.
    """

    name: str
    digest: bytes = field(repr=False)
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    admin: bool = False

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"{name} is {value!r}; must be an integer of at least 1")
        if type(self.admin) is not bool:
            raise ValueError(f"admin is {self.admin!r}; must be true or false")

    @property
    def use(self) -> Use | None:
        """None for a key without limits."""
        if self.requests_per_minute is None and self.tokens_per_minute is None:
            return None
        return Use(self.name, self.requests_per_minute, self.tokens_per_minute)

    def output_limit(self, prompt_tokens: int, prompts: int, n: int) -> int | None:
        """Tokens of each output of a request, of which the key has enough in a minute; or None.

        Raises APIError for prompts that leave none.
        """
        if self.tokens_per_minute is None:
            return None
        limit = (self.tokens_per_minute - prompt_tokens) // (prompts * n)
        if limit < 1:
            raise APIError(
                400,
                f"the prompts have {prompt_tokens} tokens and {prompts * n} outputs; the API key "
                f"has {self.tokens_per_minute} tokens per minute",
                param="prompt",
                code="rate_limit_exceeded",
            )
        return limit


class Keys:
    """Who may ask. A file is read again when it changes, at most once a second.

    Raises ValueError or OSError for a file that cannot be used. Later, that is an error in the log,
    and the keys from before stay.
    """

    def __init__(self, only: str | None = None, file: Path | None = None) -> None:
        self._own = [] if only is None else [Key(ONLY, digest_of(only), admin=True)]
        self._file, self._checked = file, time.monotonic()
        self._stamp = None if file is None else _stamp(file)
        self._keys = self._own if file is None else [*self._own, *read_keys(file)]

    @property
    def limited(self) -> bool:
        """Whether any of them has a limit."""
        return any(key.use is not None for key in self._keys)

    def find(self, given: bytes) -> Key | None:
        """The key. All digests are compared, in a time that tells nothing of them."""
        self._look_again()
        digest, found = hashlib.sha256(given).digest(), None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def _look_again(self) -> None:
        now = time.monotonic()
        if self._file is None or now - self._checked < CHECK_SECONDS:
            return
        self._checked = now
        try:
            stamp = _stamp(self._file)
            if stamp != self._stamp:
                self._stamp = stamp
                self._keys = [*self._own, *read_keys(self._file)]
                log.info("%s is read again: %d keys", self._file, len(self._keys))
        except (OSError, ValueError) as error:
            log.error("%s cannot be read again, the keys from before stay: %s", self._file, error)


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def is_token(text: Any) -> bool:
    """Whether it can stand in a header as a key."""
    plain = isinstance(text, str) and text.isascii() and text.isprintable()
    return plain and bool(text) and " " not in text


def read_keys(path: Path) -> list[Key]:
    """A table for each key, by its name. OSError, or ValueError that names table and field."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # also what is not UTF-8; its text would quote the file
        where = str(error).rpartition("(")[2].rstrip(")")
        raise ValueError(f"{path}: not TOML: {where}") from None
    if not tables:
        raise ValueError(f"{path}: has no keys; must have a table [NAME] for each")
    found = [_key(path, name, table) for name, table in tables.items()]
    _check_distinct(path, found)
    return found


def _key(path: Path, name: str, table: Any) -> Key:
    where = f"{path}: [{name}]"
    if not isinstance(table, Mapping):
        raise ValueError(f"{path}: {name} is no table; must be [NAME] with a key below it")
    if not name.isprintable() or not 1 <= len(name) <= 100 or name == ONLY:
        raise ValueError(f"{where}: a name must be 1 to 100 printable characters, and not {ONLY!r}")
    values = dict(table)
    valid = ["key", "sha256", *(each.name for each in fields(Key)[2:])]
    for unknown in values.keys() - set(valid):
        raise ValueError(f"{where} has {unknown!r}{nearest(unknown, valid)}")
    try:
        return Key(name, _digest(values.pop("key", None), values.pop("sha256", None)), **values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _digest(key: Any, sha256: Any) -> bytes:
    if (key is None) == (sha256 is None):
        raise ValueError("must have key or sha256, and not both")
    if key is not None and not is_token(key):
        raise ValueError("key must be ASCII characters without spaces, at least one")
    if key is not None:
        return digest_of(key)
    try:
        digest = bytes.fromhex(sha256)
    except (TypeError, ValueError):
        digest = b""
    if len(digest) != DIGITS // 2:
        raise ValueError(f"sha256 must be {DIGITS} hexadecimal digits, of the key")
    return digest


def _check_distinct(path: Path, keys: Iterable[Key]) -> None:
    owners: dict[bytes, str] = {}
    for key in keys:
        if key.digest in owners:
            raise ValueError(f"{path}: [{key.name}] has the key of [{owners[key.digest]}]")
        owners[key.digest] = key.name


def _stamp(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino
