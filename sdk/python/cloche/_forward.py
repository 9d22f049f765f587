"""Ports inside a sandbox, as ports of this machine's loopback. Each connection is a WebSocket to the daemon."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import ssl
import threading
from types import TracebackType
from typing import NamedTuple
from urllib.parse import urlsplit

from cloche import _address
from cloche.errors import ClocheError, ConnectionBroken

_CHUNK = 64 << 10
_MAX_FRAME = 16 << 20

_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG = 0, 2, 8, 9, 10


class Daemon(NamedTuple):
    """How a daemon is reached: as `AsyncTransport` has it."""

    host: str
    socket: str | None
    base: str
    token: str
    verify: ssl.SSLContext | bool


class WebSocket:
    """The client's end of a WebSocket that carries binary messages. One task reads, another writes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def receive(self) -> bytes | None:
        """The next piece of the other end's messages, None when it has closed. An empty one is a message."""
        while True:
            first, second = await self._reader.readexactly(2)
            kind, size = first & 0x0F, second & 0x7F
            if size == 126:
                size = int.from_bytes(await self._reader.readexactly(2), "big")
            elif size == 127:
                size = int.from_bytes(await self._reader.readexactly(8), "big")
            if second & 0x80 or size > _MAX_FRAME:
                raise ConnectionBroken("unavailable", "the daemon broke the protocol of WebSockets")
            data = await self._reader.readexactly(size)
            if kind in (_BINARY, _CONTINUATION):
                return data
            if kind == _CLOSE:
                return None
            if kind == _PING:
                await self._send(_PONG, data)

    async def send(self, data: bytes) -> None:
        """Sends one message."""
        await self._send(_BINARY, data)

    async def _send(self, kind: int, data: bytes) -> None:
        size = len(data)
        head = bytearray([0x80 | kind])
        if size < 126:
            head.append(0x80 | size)
        elif size < 1 << 16:
            head.append(0x80 | 126)
            head += size.to_bytes(2, "big")
        else:
            head.append(0x80 | 127)
            head += size.to_bytes(8, "big")
        key = os.urandom(4)
        mask = int.from_bytes((key * (size // 4 + 1))[:size], "big")
        masked = (int.from_bytes(data, "big") ^ mask).to_bytes(size, "big")
        self._writer.write(bytes(head) + key + masked)
        await self._writer.drain()

    def close(self) -> None:
        """Ends the connection."""
        self._writer.close()


async def dial(daemon: Daemon, path: str) -> WebSocket:
    """Opens a WebSocket of the daemon's. `ClocheError` says why it cannot."""
    parts = urlsplit(daemon.base)
    try:
        if daemon.socket is not None:
            opening = asyncio.open_unix_connection(daemon.socket)
        else:
            context = _context(daemon.verify) if parts.scheme == "https" else None
            port = parts.port or (443 if context else 80)
            opening = asyncio.open_connection(parts.hostname, port, ssl=context)
        reader, writer = await asyncio.wait_for(opening, _address.CONNECT_SECONDS)
    except (OSError, asyncio.TimeoutError) as e:
        raise _address.not_reached(daemon.host, e) from e
    try:
        return await _shake(daemon, path, parts.netloc, reader, writer)
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as e:
        writer.close()
        raise _address.broken(daemon.host, e) from e
    except BaseException:
        writer.close()
        raise


async def _shake(
    daemon: Daemon, path: str, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> WebSocket:
    fields = {
        "Host": host,
        "User-Agent": "cloche-python",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
    }
    if daemon.token:
        fields["Authorization"] = f"Bearer {daemon.token}"
    request = f"GET {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in fields.items()) + "\r\n"
    writer.write(request.encode("ascii"))
    await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    status = int(lines[0].split()[1])
    if status == 101:
        return WebSocket(reader, writer)
    sizes = [v for k, _, v in (line.partition(":") for line in lines[1:]) if k.lower() == "content-length"]
    size = min(int(sizes[0]), _address.MAX_ERROR) if sizes else 0
    raise _address.refused(await reader.readexactly(size), status)


def _context(verify: ssl.SSLContext | bool) -> ssl.SSLContext:
    if isinstance(verify, ssl.SSLContext):
        return verify
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def _carry(socket: WebSocket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carries one connection. A message without bytes is the end of its direction."""

    async def inward() -> None:
        while data := await reader.read(_CHUNK):
            await socket.send(data)
        await socket.send(b"")

    sender = asyncio.create_task(inward())
    try:
        while (data := await socket.receive()) is not None:
            if data:
                writer.write(data)
                await writer.drain()
            else:
                writer.write_eof()
    finally:
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)
        socket.close()


class AsyncForward:
    """A listener at 127.0.0.1 of this machine. Each connection to it leads to a port of 127.0.0.1 inside the
    sandbox, whatever the sandbox's network is, and is closed if nothing listens there. Every user of this
    machine can connect. It belongs to the event loop in which it is started."""

    host = "127.0.0.1"
    """The address of the listener."""
    port = 0
    """Its port; 0 until it has started."""

    def __init__(self, daemon: Daemon, path: str, local_port: int = 0) -> None:
        self._daemon, self._path, self._local_port = daemon, path, local_port
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://{self.host}:{self.port}"

    async def start(self) -> AsyncForward:
        """Listens. OSError where the port that was chosen is taken."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, self.host, self._local_port)
            self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def aclose(self) -> None:
        """Ends the listener and what is open."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        open_now = list(self._open)
        for task in open_now:
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await _carry(await dial(self._daemon, self._path), reader, writer)
        except (ClocheError, OSError, EOFError):
            pass  # nothing listens there: the connection is closed, as it would be inside
        except asyncio.CancelledError:
            pass  # the listener has ended, and no caller waits for the task of a server
        finally:
            self._open.discard(task)
            writer.close()

    async def __aenter__(self) -> AsyncForward:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Forward:
    """`AsyncForward` without asyncio: a thread of its own carries the connections."""

    host = AsyncForward.host
    """The address of the listener."""
    port = 0
    """Its port; 0 until it has started."""

    def __init__(self, daemon: Daemon, path: str, local_port: int = 0) -> None:
        self._given = (daemon, path, local_port)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self._error: BaseException | None = None

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://{self.host}:{self.port}"

    def start(self) -> Forward:
        """Listens. OSError where the port that was chosen is taken."""
        if self._thread is None:
            begun = threading.Event()
            self._thread = threading.Thread(
                target=lambda: asyncio.run(self._serve(begun)), name="cloche-forward", daemon=True
            )
            self._thread.start()
            begun.wait()
            if self._error is not None:
                error, self._error = self._error, None
                self.close()
                raise error
        return self

    async def _serve(self, begun: threading.Event) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with AsyncForward(*self._given) as forward:
                self.port = forward.port
                begun.set()
                await self._ended.wait()
        except OSError as e:
            self._error = e
        finally:
            begun.set()

    def close(self) -> None:
        """Ends the listener and what is open."""
        thread, self._thread = self._thread, None
        if thread is not None:
            if self._loop is not None and self._ended is not None:
                with contextlib.suppress(RuntimeError):  # it has ended by itself
                    self._loop.call_soon_threadsafe(self._ended.set)
            thread.join()

    def __enter__(self) -> Forward:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
