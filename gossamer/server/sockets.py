"""The address of a server, bound once or once for each of its API processes."""

import socket

SHARED = hasattr(socket, "SO_REUSEPORT")


def bind(host: str, port: int, count: int = 1) -> list[socket.socket]:
    """Sockets of one address; nobody can connect before a server listens. Raises OSError.

    Several have SO_REUSEPORT, with which Linux spreads connections over them: of one socket, the
    first process to wake would accept all that wait.
    """
    first = _bound(host, port, shared=False)  # fails where anybody has the address
    if count == 1:
        return [first]
    port = int(first.getsockname()[1])
    if not SHARED:
        return [first] + [first.dup() for _ in range(count - 1)]
    first.close()
    return [_bound(host, port, shared=True) for _ in range(count)]


def address(listening: socket.socket) -> str:
    """For people."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _bound(host: str, port: int, *, shared: bool) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # With the protocol's name: asyncio sends small pieces at once (TCP_NODELAY) only then.
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        found.bind((host, port))
    except OSError as error:
        raise OSError(f"{host}:{port} cannot be served: {error.strerror or error}") from None
    return found
