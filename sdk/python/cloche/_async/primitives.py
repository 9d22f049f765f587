"""What differs between the client for asyncio and the other one; its counterpart is in _sync."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Generator, Iterable
from types import TracebackType
from typing import IO, Any, Generic, Protocol, TypeAlias, TypeVar

from cloche._address import CHUNK

T = TypeVar("T")

Source: TypeAlias = "str | bytes | bytearray | memoryview | IO[bytes] | Iterable[bytes] | AsyncIterable[bytes]"
"""What can be sent: text goes as UTF-8, an open file from where it is. A file, or a plain iterable, is
read in the event loop."""

sleep = asyncio.sleep

_kept: set[asyncio.Task[Any]] = set()


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Waits for work that must complete, even if the waiting task is cancelled."""
    task = asyncio.ensure_future(work)
    _kept.add(task)
    task.add_done_callback(_done)
    return await asyncio.shield(task)


async def aside(work: Callable[[], None]) -> None:
    """Does work that blocks, in a thread."""
    await asyncio.to_thread(work)


class Background:
    """Work beside the calls of one client, which is begun and ended many times."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins it, unless it is under way."""
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._work())
            _kept.add(self._task)
            self._task.add_done_callback(_done)

    def stop(self) -> None:
        """Ends it."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def sleep(self, seconds: float) -> None:
        """What the work waits with."""
        await asyncio.sleep(seconds)


class Handle(Protocol):
    """What a ``with`` ends."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


H = TypeVar("H", bound=Handle)


class Making(Coroutine[Any, Any, H], Generic[H]):
    """A coroutine whose result can be used in an ``async with`` without an ``await`` of its own."""

    def __init__(self, work: Coroutine[Any, Any, H]) -> None:
        self._work = work
        self._made: H | None = None

    def __await__(self) -> Generator[Any, Any, H]:
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        """See `Coroutine`."""
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """See `Coroutine`."""
        return self._work.throw(*error)

    def close(self) -> None:
        """See `Coroutine`."""
        self._work.close()

    async def __aenter__(self) -> H:
        self._made = await self._work
        await self._made.__aenter__()
        return self._made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._made is not None
        await self._made.__aexit__(kind, error, trace)


def _done(task: asyncio.Task[Any]) -> None:
    _kept.discard(task)
    if not task.cancelled():
        task.exception()  # who was cancelled does not come for it


def content(source: Source) -> bytes | AsyncIterator[bytes]:
    """A body as httpx sends it."""
    if isinstance(source, str):
        return source.encode("utf-8", "surrogateescape")
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    return _pieces(source)


async def _pieces(source: IO[bytes] | Iterable[bytes] | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(source, AsyncIterable):
        async for piece in source:
            yield piece
    elif hasattr(source, "read"):
        while piece := source.read(CHUNK):
            yield piece
            await asyncio.sleep(0)
    else:
        for piece in source:
            yield piece
