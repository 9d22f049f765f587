"""The ports of one session."""

from __future__ import annotations

import asyncio

from cloche import _address
from cloche._async.transport import AsyncTransport
from cloche._forward import AsyncForward


class Ports:
    """Listeners of one session, each of which leads to a port inside. They end with the session."""

    def __init__(self, transport: AsyncTransport, ref: str) -> None:
        self._t, self._ref = transport, ref
        self._forwards: dict[int, AsyncForward] = {}
        self._lock = asyncio.Lock()

    async def forward(self, port: int) -> tuple[str, int]:
        """The address of the listener that leads there, whether or not a program listens inside already."""
        async with self._lock:
            if port not in self._forwards:
                path = _address.sandbox_path(self._ref, "ports", str(port))
                self._forwards[port] = await AsyncForward(self._t.daemon(), path).start()
            made = self._forwards[port]
            return made.host, made.port

    async def aclose(self) -> None:
        """Ends the listeners and what is open."""
        forwards, self._forwards = self._forwards, {}
        await asyncio.gather(*(forward.aclose() for forward in forwards.values()))
