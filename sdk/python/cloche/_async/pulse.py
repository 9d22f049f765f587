"""Connections to a daemon, and the check that it still responds."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from cloche._async import primitives
from cloche.errors import ClocheError, ConnectionBroken

if TYPE_CHECKING:
    import httpx

_PROBES = 3
"""How many times a silent daemon is probed before the client gives up."""

_FREE = 64
"""Idle connections that are kept."""


class AsyncExchange:
    """One request on its own connection, which another task can abort."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.begun = time.monotonic()
        self.silent = False
        """The daemon did not respond, so the request was aborted."""
        self._stream: Any = None
        self.extensions = {"trace": self._trace}

    async def _trace(self, event: str, info: dict[str, Any]) -> None:
        if event.startswith("connection.") and event.endswith(".complete"):
            self._stream = info.get("return_value")
            if self.silent:
                self.break_off()

    def renew(self) -> None:
        """Begins the next request on the connection."""
        self.begun, self.silent = time.monotonic(), False

    def break_off(self) -> None:
        """Ends the request. Its caller finds the connection broken."""
        self.silent = True
        sock = self._stream.get_extra_info("socket") if self._stream is not None else None
        # A connection that is still being made is broken off when it is there. TLS is left alone: another
        # thread may be using it.
        with contextlib.suppress(OSError, ValueError):
            if sock is not None:
                with socket.socket(fileno=os.dup(sock.fileno())) as end:
                    end.shutdown(socket.SHUT_RDWR)


class AsyncPulse:
    """The connections to one daemon. While any request waits, the daemon is asked for a sign of life,
    to which every answer is one, and after `silence` seconds without any the requests end."""

    def __init__(self, connect: Callable[[], httpx.AsyncClient], url: str, silence: float | None) -> None:
        self._connect, self._url, self._silence = connect, url, silence
        self._free: list[AsyncExchange] = []
        self._open: set[AsyncExchange] = set()
        self._heard = 0.0
        self._closed = False
        self._beat = primitives.Background(self._watch)

    def hear(self) -> None:
        """Notes that the daemon answered."""
        self._heard = time.monotonic()

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[AsyncExchange]:
        """A connection for one request."""
        try:
            exchange = self._free.pop()
            exchange.renew()
        except IndexError:
            exchange = AsyncExchange(self._connect())
        self._open.add(exchange)
        if self._silence is not None:
            self._beat.start()
        whole = False
        try:
            yield exchange
            whole = True
        except ClocheError as e:
            whole = not isinstance(e, ConnectionBroken)
            raise
        finally:
            self._open.discard(exchange)
            if not self._open:
                self._beat.stop()
            # The state of a connection on which a request was given up is not known.
            if not whole or self._closed or exchange.silent or len(self._free) >= _FREE:
                await exchange.http.aclose()
            else:
                self._free.append(exchange)

    async def _watch(self) -> None:
        """Watches as long as any request waits."""
        silence = self._silence or 0.0
        every = silence / _PROBES
        while self._open:
            now, left = time.monotonic(), silence
            for exchange in list(self._open):
                rest = silence - (now - max(exchange.begun, self._heard))
                if rest <= 0 and not exchange.silent:
                    exchange.break_off()
                elif not exchange.silent:
                    left = min(left, rest)
            wait = left - (silence - every)
            if wait <= 0:
                if await self._asked(min(every, left)):
                    self.hear()
                    continue
                wait = min(every, left) - (time.monotonic() - now)
            await self._beat.sleep(max(wait, 0.001))

    async def _asked(self, within: float) -> bool:
        """Whether the daemon answers anything within so long."""
        import httpx

        async with self._connect() as http:
            try:
                await http.get(self._url, timeout=within)
            except httpx.HTTPError:
                return False
            return True

    async def aclose(self) -> None:
        """Ends idle connections, and each other one with its request."""
        self._closed = True
        free, self._free = self._free, []
        for exchange in free:
            await exchange.http.aclose()
