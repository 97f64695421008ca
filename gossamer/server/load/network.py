"""Sockets of the clients: asyncio's streams under httpcore.

httpcore's own backend enters a cancel scope for each read, which takes as long as all the rest: a
client that reads tens of thousands of tokens per second would measure itself.
"""

import asyncio
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore


class Stream(httpcore.AsyncNetworkStream):
    """Without timeouts of single reads: whole requests have one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._writer.write(buffer)
        await self._writer.drain()

    async def aclose(self) -> None:
        self._writer.close()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> "Stream":
        await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        return self

    def get_extra_info(self, info: str) -> Any:
        return self._writer.get_extra_info(info)


class Backend(httpcore.AsyncNetworkBackend):
    """TCP only."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> Stream:
        return Stream(*await asyncio.open_connection(host, port))
