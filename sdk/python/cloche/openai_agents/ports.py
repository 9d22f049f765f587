"""Ports inside a sandbox, as ports of this machine's loopback."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any

import websockets
from websockets.asyncio.client import ClientConnection, connect, unix_connect

from cloche import _address
from cloche._async.transport import AsyncTransport

_CHUNK = 64 << 10


class Ports:
    """Listeners of one session, each of which leads to a port inside. They end with the session."""

    def __init__(self, transport: AsyncTransport, ref: str) -> None:
        self._t, self._ref = transport, ref
        self._servers: dict[int, asyncio.Server] = {}
        self._open: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()

    async def forward(self, port: int) -> tuple[str, int]:
        """The address of the listener that leads there, whether or not anybody listens inside already."""
        async with self._lock:
            server = self._servers.get(port)
            if server is None:

                async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                    await self._accept(port, reader, writer)

                server = self._servers[port] = await asyncio.start_server(accept, "127.0.0.1", 0)
            host, number = server.sockets[0].getsockname()[:2]
            return str(host), int(number)

    async def _accept(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            async with self._dial(port) as socket:
                await _carry(socket, reader, writer)
        except (websockets.WebSocketException, OSError, asyncio.TimeoutError):
            pass  # nobody listens there: the connection is closed, as it would be inside
        finally:
            self._open.discard(task)
            writer.close()

    def _dial(self, port: int) -> Any:
        path = _address.sandbox_path(self._ref, "ports", str(port))
        given: dict[str, Any] = {"max_size": None, "compression": None, "proxy": None, "ping_interval": None}
        if self._t._token:
            given["additional_headers"] = {"Authorization": f"Bearer {self._t._token}"}
        url = self._t._base + path
        if self._t._socket:
            return unix_connect(self._t._socket, "ws" + url.removeprefix("http"), **given)
        if url.startswith("https"):
            given["ssl"] = _context(self._t._verify)
        return connect("ws" + url.removeprefix("http"), **given)

    async def aclose(self) -> None:
        """Ends the listeners and what is open."""
        servers, self._servers = self._servers, {}
        for server in servers.values():
            server.close()
        open_now = list(self._open)
        for task in open_now:
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)


def _context(verify: ssl.SSLContext | bool) -> ssl.SSLContext:
    if isinstance(verify, ssl.SSLContext):
        return verify
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def _carry(socket: ClientConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carries one connection. A frame without bytes is the end of its direction."""

    async def inward() -> None:
        while data := await reader.read(_CHUNK):
            await socket.send(data)
        await socket.send(b"")

    async def outward() -> None:
        async for message in socket:
            if not isinstance(message, bytes):
                continue
            if not message:
                with contextlib.suppress(OSError):
                    writer.write_eof()
                continue
            writer.write(message)
            await writer.drain()

    sender = asyncio.create_task(inward())
    try:
        await outward()
    finally:
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)
