"""The services of verifiers on this machine behind one address: of each rollout, one path.

A sandbox has one endpoint, whose target is ``http://HOST:PORT/rollout/SECRET`` here. Below it lies a
number for each service that verifiers gave the rollout: its interception server, and the servers of its
tools. What was not given to it cannot be reached by it.

Each connection carries one request. Its first line, its ``Host`` and its ``Connection`` are written anew;
all else goes through as the bytes that it is, in both directions and as it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections.abc import AsyncIterator
from typing import ClassVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

logger = logging.getLogger(__name__)

PREFIX = "/rollout/"

HEAD_BYTES = 256 << 10
"""The longest head of a request or a response; an endpoint takes shorter ones."""

HEAD_SECONDS = 30.0
"""How long a request's head may take."""

CONNECT_SECONDS = 10.0

_CHUNK = 64 << 10
_END = b"\r\n\r\n"


class Route:
    """The services of one rollout. `path` is where they begin; it is a secret."""

    def __init__(self, secret: str) -> None:
        self.path = f"{PREFIX}{secret}"
        self._origins: list[str] = []

    def add(self, url: str) -> str:
        """Lets the rollout reach the origin of an http URL; the path at which its endpoint has the URL."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.netloc or parts.username is not None:
            raise ValueError(f"{parts.scheme}://{parts.hostname} is no service of this machine")
        origin = parts.netloc
        if origin not in self._origins:
            self._origins.append(origin)
        path = f"/{self._origins.index(origin)}{parts.path}"
        return f"{path}?{parts.query}" if parts.query else path

    def find(self, rest: str) -> tuple[str, str] | None:
        """The authority and the path that ``/NUMBER/PATH`` stands for; None for a number that was not
        given out."""
        number, slash, path = rest.removeprefix("/").partition("/")
        if not slash or number not in map(str, range(len(self._origins))):
            return None
        return self._origins[int(number)], f"/{path}"


class Bridge:
    """One listener for all rollouts of a process, in one event loop."""

    _shared: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int], Bridge]]] = (
        WeakKeyDictionary()
    )

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._routes: dict[bytes, Route] = {}
        self._users = 0
        self._ready = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.base = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def route(cls, host: str, port: int) -> AsyncIterator[tuple[str, Route]]:
        """A route of its own and the URL at which it begins, until the context ends. The listener is
        there from its first user to its last."""
        bridges = cls._shared.setdefault(asyncio.get_running_loop(), {})
        bridge = bridges.setdefault((host, port), cls(host, port))
        secret = secrets.token_urlsafe(32)
        key, route = _key(secret), Route(secret)
        bridge._users += 1
        try:
            async with bridge._ready:
                if bridge._server is None:
                    await bridge._start()
            bridge._routes[key] = route
            yield bridge.base + route.path, route
        finally:
            bridge._routes.pop(key, None)
            bridge._users -= 1
            if bridge._users == 0:
                bridges.pop((host, port), None)
                await bridge._stop()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=HEAD_BYTES)
        self.base = f"http://{self._host}:{self._server.sockets[0].getsockname()[1]}"

    async def _stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._exchange(reader, writer)
        except (OSError, EOFError, asyncio.LimitOverrunError, TimeoutError, ValueError):
            # What broke off must not look like what has ended.
            writer.transport.abort()
        finally:
            self._open.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_SECONDS):
            first, headers = _split(await reader.readuntil(_END))
        method, target, version = first.split(b" ")
        found = self._find(target.decode("ascii"))
        if found is None:
            await _say(writer, 404, b"there is no such service")
            return
        authority, path = found
        parts = urlsplit(f"//{authority}")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                inner, outer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=HEAD_BYTES)
        except (OSError, TimeoutError) as e:
            logger.warning("a service of a rollout cannot be reached: %s", type(e).__name__)
            await _say(writer, 502, b"the service does not answer")
            return
        upgrade = any(name == b"upgrade" for name, _ in headers)
        kept = [line for name, line in headers if name not in (b"host", *_connection(upgrade))]
        kept.insert(0, b"Host: " + authority.encode("ascii"))
        outer.write(_joined(b" ".join((method, path.encode("ascii"), version)), kept, upgrade))
        back = asyncio.create_task(_answer(inner, writer))
        there = asyncio.create_task(_copy(reader, outer))
        try:
            # A client that leaves ends the exchange: an HTTP client does not close one half.
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
            if back.done():
                back.result()
        finally:
            for task in (there, back):
                task.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            outer.transport.abort()

    def _find(self, target: str) -> tuple[str, str] | None:
        if not target.startswith(PREFIX):
            return None
        secret, slash, rest = target.removeprefix(PREFIX).partition("/")
        route = self._routes.get(_key(secret))
        return route.find(slash + rest) if route is not None else None


def _key(secret: str) -> bytes:
    # How long a look-up by the digest takes tells nothing of the secret.
    return hashlib.sha256(secret.encode()).digest()


def _split(head: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The first line and the other lines, each with the small name of its header."""
    first, *lines = head.removesuffix(_END).split(b"\r\n")
    return first, [(line.partition(b":")[0].strip().lower(), line) for line in lines]


def _connection(upgrade: bool) -> tuple[bytes, ...]:
    """The headers that are about one connection and written anew."""
    return () if upgrade else (b"connection", b"keep-alive")


def _joined(first: bytes, lines: list[bytes], upgrade: bool) -> bytes:
    close = [] if upgrade else [b"Connection: close"]
    return b"\r\n".join([first, *lines, *close]) + _END


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carries a response, after those that only tell that one will come."""
    while True:
        first, headers = _split(await reader.readuntil(_END))
        status = first.split(b" ")[1]
        told = status.startswith(b"1")
        kept = [line for name, line in headers if told or name not in _connection(False)]
        writer.write(_joined(first, kept, told))
        if not told or status == b"101":
            break
    await _copy(reader, writer)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    await writer.drain()


async def _say(writer: asyncio.StreamWriter, status: int, message: bytes) -> None:
    body = b'{"error":{"message":"' + message + b'"}}'
    lines = [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    reason = {404: b"Not Found", 502: b"Bad Gateway"}[status]
    writer.write(_joined(b"HTTP/1.1 %d %s" % (status, reason), lines, False) + body)
    await writer.drain()
