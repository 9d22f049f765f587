"""What the tests share: sessions that leave nothing, a count of calls, and a wire that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from agents.sandbox import LocalSnapshotSpec, Manifest
from agents.sandbox.session import SandboxSession

import cloche
from cloche import _address
from cloche._async.transport import AsyncTransport
from cloche.openai_agents import ClocheSandboxClient, ClocheSandboxClientOptions, ClocheSandboxSessionState

IMAGE = "host"
"""Needs no registry."""
PATIENCE = 60.0

needs_daemon = pytest.mark.skipif(not os.environ.get("CLOCHE_HOST"), reason="needs a daemon: set CLOCHE_HOST")


class World:
    """A client of the daemon's, and the sandboxes of one test."""

    def __init__(self, client: ClocheSandboxClient, snapshots: Path) -> None:
        self.client = client
        self.mark = uuid.uuid4().hex
        self.snapshots = LocalSnapshotSpec(base_path=snapshots)
        self.api = cloche.AsyncSandboxClient()

    def options(self, **given: Any) -> ClocheSandboxClientOptions:
        return ClocheSandboxClientOptions(**{"image": IMAGE, "labels": {"test": self.mark}, **given})

    async def session(
        self, manifest: Manifest | None = None, *, kept: bool = False, started: bool = True, **given: Any
    ) -> SandboxSession:
        made = await self.client.create(
            manifest=manifest, snapshot=self.snapshots if kept else None, options=self.options(**given)
        )
        if started:
            await made.start()
        return made

    def again(self, session: SandboxSession) -> ClocheSandboxSessionState:
        """The state of a session, as another process would have it."""
        state = self.client.deserialize_session_state(self.client.serialize_session_state(session.state))
        assert isinstance(state, ClocheSandboxSessionState)
        return state

    async def sandboxes(self) -> list[str]:
        """Those of this test that there are, in whatever state."""
        return [s.id for s in await self.api.list(labels={"test": self.mark})]

    async def none_left(self) -> None:
        end = time.monotonic() + PATIENCE
        while left := await self.sandboxes():
            assert time.monotonic() < end, f"left behind: {left}"
            await asyncio.sleep(0.05)


def run(test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    """Runs a test, and removes what it made."""

    async def within() -> None:
        with tempfile.TemporaryDirectory() as snapshots:
            async with ClocheSandboxClient() as client:
                world = World(client, Path(snapshots))
                try:
                    await asyncio.wait_for(test(world), 5 * PATIENCE)
                finally:
                    for left in await world.api.list(labels={"test": world.mark}):
                        await left.remove()
                    await world.api.aclose()

    asyncio.run(within())


@contextlib.contextmanager
def counted() -> Any:
    """The calls of the API that are made within, as a list that grows."""
    calls: list[str] = []
    stream = AsyncTransport.stream

    def counting(self: AsyncTransport, method: str, path: str, **given: Any) -> Any:
        calls.append(f"{method} {path}")
        return stream(self, method, path, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AsyncTransport, "stream", counting)
        yield calls


class Wire:
    """A way to the daemon that can be cut."""

    def __init__(self, path: str) -> None:
        self._path, self._port = path, 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._goal = 0
        self._reached = asyncio.Event()

    @property
    def host(self) -> str:
        return f"tcp://127.0.0.1:{self._port}" if self._port else f"unix://{self._path}"

    async def connect(self) -> None:
        if _address.parse_host(os.environ["CLOCHE_HOST"])[0]:
            self._server = await asyncio.start_unix_server(self._carry, self._path)
            return
        # A daemon knows itself by loopback addresses, and not by the name that sockets are called by.
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """No connection passes any more, and open ones break off."""
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self.snap()

    async def carried(self, count: int) -> None:
        """Waits until so many bytes more went either way."""
        self._goal = count
        self._reached.clear()
        await self._reached.wait()

    def snap(self) -> None:
        """Breaks off what is under way; the next one gets through."""
        for writer in list(self._open):
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        socket, base = _address.parse_host(os.environ["CLOCHE_HOST"])
        if socket:
            far, out = await asyncio.open_unix_connection(socket)
        else:
            host, _, port = base.removeprefix("http://").rpartition(":")
            far, out = await asyncio.open_connection(host, int(port))
        self._open |= {writer, out}

        async def one(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(1 << 16):
                    sink.write(data)
                    self._goal -= len(data)
                    if self._goal <= 0:
                        self._reached.set()
                    await sink.drain()
                sink.write_eof()

        with contextlib.suppress(OSError):
            await asyncio.gather(one(reader, out), one(far, writer))
        for end in (writer, out):
            end.close()
            self._open.discard(end)


@contextlib.asynccontextmanager
async def wire() -> AsyncIterator[Wire]:
    with tempfile.TemporaryDirectory() as directory:
        made = Wire(f"{directory}/s")
        await made.connect()
        try:
            yield made
        finally:
            await made.cut()


async def eventually(test: Callable[[], Awaitable[bool]]) -> None:
    end = time.monotonic() + PATIENCE
    while not await test():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
