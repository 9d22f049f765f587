"""What differs between the client without asyncio and the other one; its counterpart is in _async."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TypeAlias

from cloche._address import CHUNK

Source: TypeAlias = "str | bytes | bytearray | memoryview | IO[bytes] | Iterable[bytes]"
"""What can be sent: text goes as UTF-8, an open file from where it is."""

sleep = time.sleep


def aside(work: Callable[[], None]) -> None:
    """Does work that blocks."""
    work()


def content(source: Source) -> bytes | Iterator[bytes]:
    """A body as httpx sends it."""
    if isinstance(source, str):
        return source.encode("utf-8", "surrogateescape")
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    return _pieces(source)


def _pieces(source: IO[bytes] | Iterable[bytes]) -> Iterator[bytes]:
    if hasattr(source, "read"):
        while piece := source.read(CHUNK):
            yield piece
    else:
        yield from source
