"""Pipes over TCP between rank 0 and ranks that it did not start itself.

A rank knows from its launcher where rank 0 listens, and a token. Nothing is unpickled of whoever
does not begin with the token; like torch.distributed's own traffic, the rest is for a network that
is trusted.
"""

import hmac
import ipaddress
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait

PATIENCE = 120.0  # seconds for all ranks to connect: they import torch first
GREETING = 5.0  # seconds for who has connected to say who it is
TICK = 0.5  # seconds between two looks at whether the ranks still can connect
# A host that is gone closes nothing: it is asked after so many idle seconds, then so often again.
IDLE, INTERVAL, PROBES = 3, 1, 4


@dataclass(frozen=True)
class Address:
    """Where rank 0 listens, and what to say there."""

    host: str
    port: int
    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback


def listen(host: str) -> socket.socket:
    """On a free port of this address. Raises OSError that names the host."""
    try:
        return socket.create_server((host, 0))
    except OSError as error:
        raise OSError(f"rank 0 cannot listen on {host}: {error}") from error


class Link:
    """One end of a connection. pipe: for messages."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(None)
        options = (
            (socket.TCP_NODELAY, 1),  # steps are small, and nobody answers them
            (socket.TCP_KEEPIDLE, IDLE),
            (socket.TCP_KEEPINTVL, INTERVAL),
            (socket.TCP_KEEPCNT, PROBES),
            (socket.TCP_USER_TIMEOUT, 1000 * (IDLE + INTERVAL * PROBES)),
        )
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in options:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
        self.pipe = Connection(connected.detach())
        self._over = False

    @classmethod
    def to(cls, address: Address, rank: int) -> "Link":
        """A rank's link to rank 0."""
        link = cls(socket.create_connection((address.host, address.port), timeout=PATIENCE))
        link.pipe.send_bytes(address.token.encode())
        link.pipe.send((rank, f"process {os.getpid()} on {socket.gethostname()}"))
        return link

    def leave_with_peer(self) -> None:
        """End this process when the other end is gone, also while it waits in a collective."""

        def watch() -> None:
            hung_up = select.poll()
            hung_up.register(self.pipe, select.POLLRDHUP)
            hung_up.poll()
            if not self._over:
                os._exit(1)

        threading.Thread(target=watch, name="gossamer link", daemon=True).start()

    def hang_up(self) -> None:
        self._over = True
        with (
            suppress(OSError),  # the other end was first, or the pipe is closed
            socket.socket(fileno=os.dup(self.pipe.fileno())) as connected,
        ):
            connected.shutdown(socket.SHUT_RDWR)


class RemoteRank:
    """See Member: a rank at the other end of a link, on any host."""

    sentinel = None  # the end of its pipe tells
    advice = "see what it printed"

    def __init__(self, link: Link, process: str) -> None:
        self._link, self._process, self.pipe = link, process, link.pipe

    def ending(self) -> str:
        return f"({self._process}) ended: its connection closed"

    def join(self, seconds: float) -> None:
        with suppress(OSError):  # closed before
            wait([self.pipe], seconds)

    def end(self, force: bool) -> None:
        self._link.hang_up()  # and it will leave


def accept(
    server: socket.socket, token: str, ranks: Iterable[int], check: Callable[[], object]
) -> dict[int, RemoteRank]:
    """All of these ranks, once they have connected. check: raises when one cannot any more.

    Raises TimeoutError that names who did not come.
    """
    found: dict[int, RemoteRank] = {}
    missing, deadline = set(ranks), time.monotonic() + PATIENCE
    server.settimeout(TICK)
    try:
        while missing:
            check()
            if time.monotonic() > deadline:
                names = ", ".join(map(str, sorted(missing)))
                raise TimeoutError(f"no connection from rank {names} within {PATIENCE:.0f} seconds")
            with suppress(TimeoutError):
                connected, _ = server.accept()
                greeting = _greeting(link := Link(connected), token)
                if greeting is None or greeting[0] not in missing:
                    link.hang_up()
                    continue
                rank, process = greeting
                found[rank] = RemoteRank(link, process)
                missing.remove(rank)
    except BaseException:
        for member in found.values():
            member.end(force=True)
        raise
    return found


def _greeting(link: Link, token: str) -> tuple[int, str] | None:
    """The rank of who has connected, and its process; None for strangers."""
    try:
        if not link.pipe.poll(GREETING):
            return None
        said = link.pipe.recv_bytes(len(token))
        if not hmac.compare_digest(said, token.encode()) or not link.pipe.poll(GREETING):
            return None
        greeting: tuple[int, str] = link.pipe.recv()
    except (EOFError, OSError):
        return None
    return greeting
