"""What differs between the client for asyncio and the other one; its counterpart is in _sync."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from typing import IO, Any, TypeAlias, TypeVar

from cloche._address import CHUNK

T = TypeVar("T")

Source: TypeAlias = "str | bytes | bytearray | memoryview | IO[bytes] | Iterable[bytes] | AsyncIterable[bytes]"
"""What can be sent: text goes as UTF-8, an open file from where it is. A file, or a plain iterable, is
read in the event loop."""

sleep = asyncio.sleep

_kept: set[asyncio.Task[Any]] = set()


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Waits for work that must be done whole, even when whoever waits is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    _kept.add(task)
    task.add_done_callback(_done)
    return await asyncio.shield(task)


async def aside(work: Callable[[], None]) -> None:
    """Does work that blocks, in a thread."""
    await asyncio.to_thread(work)


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
