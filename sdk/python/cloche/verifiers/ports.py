"""Ports inside a sandbox, as ports of this machine's loopback."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp

from cloche.verifiers.api import Api, ApiError

_CHUNK = 64 << 10


@contextlib.asynccontextmanager
async def forward(api: Api, sandbox: str, port: int) -> AsyncIterator[str]:
    """Yields the URL of a listener whose connections lead to `port` inside. They end with it."""
    open_now: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_now.add(task)
        try:
            await _carry(api, f"/v1/sandboxes/{sandbox}/ports/{port}", reader, writer)
        finally:
            open_now.discard(task)
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(open_now):
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)


async def _carry(api: Api, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carries one connection. A frame without bytes is the end of its direction."""
    try:
        socket = await api.stream(path)
    except ApiError:
        return  # nobody listens there: the connection is closed, as it would be inside

    async def inward() -> None:
        while data := await reader.read(_CHUNK):
            await socket.send_bytes(data)
        await socket.send_bytes(b"")

    async def outward() -> None:
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                continue
            if not message.data:
                writer.write_eof()
                continue
            writer.write(message.data)
            await writer.drain()

    sender = asyncio.create_task(inward())
    try:
        await outward()
    except (aiohttp.ClientError, OSError):
        pass
    finally:
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)
        await socket.close()
