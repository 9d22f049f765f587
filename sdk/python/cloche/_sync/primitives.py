"""What differs between the client without asyncio and the other one; its counterpart is in _async."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TypeAlias

from cloche._address import CHUNK

Source: TypeAlias = "str | bytes | bytearray | memoryview | IO[bytes] | Iterable[bytes]"
"""What can be sent: text goes as UTF-8, an open file from where it is."""

sleep = time.sleep


def aside(work: Callable[[], None]) -> None:
    """Does work that blocks."""
    work()


class Background:
    """Work beside the calls of one client, which is begun many times, and ends by itself when there is
    nothing to do."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._again = False
        self._wake = threading.Event()
        _all.add(self)

    def start(self) -> None:
        """Begins it, unless it is under way."""
        with self._lock:
            self._again = True
            if self._thread is None:
                self._wake.clear()
                self._thread = threading.Thread(target=self._run, name="cloche-pulse", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._again:
                    self._thread = None
                    return
                self._again = False
            self._work()

    def sleep(self, seconds: float) -> None:
        """What the work waits with."""
        self._wake.wait(seconds)

    def stop(self) -> None:
        """Nothing: the work looks now and then whether there is something to do."""

    def settle(self) -> None:
        """Ends it now, if there is nothing to do."""
        with self._lock:
            thread, self._again = self._thread, False
        self._wake.set()
        if thread is not None:
            thread.join(0.1)
        self._wake.clear()


_all: weakref.WeakSet[Background] = weakref.WeakSet()


def _settle_all() -> None:
    for work in list(_all):
        work.settle()


if hasattr(os, "register_at_fork"):
    # A process that forks should have no other thread.
    os.register_at_fork(before=_settle_all)


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
