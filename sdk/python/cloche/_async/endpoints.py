"""Services of the host at addresses of a sandbox's loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from cloche import _address
from cloche._async.transport import AsyncTransport
from cloche.spec import to_ms

if TYPE_CHECKING:
    from cloche import wire


class AsyncEndpoints:
    """The endpoints of one sandbox. They work whatever its network is."""

    def __init__(self, transport: AsyncTransport, ref: str) -> None:
        self._t, self._ref = transport, ref

    def _path(self, *rest: str) -> str:
        return _address.sandbox_path(self._ref, "endpoints", *rest)

    async def list(self) -> list[wire.EndpointStatus]:
        """All of them, by name."""
        answer = await self._t.json("GET", self._path(), repeat=True)
        return cast("list[wire.EndpointStatus]", answer["endpoints"] or [])

    async def get(self, name: str) -> wire.EndpointStatus:
        """One of them."""
        return cast("wire.EndpointStatus", await self._t.json("GET", self._path(name), repeat=True))

    async def add(self, endpoint: wire.Endpoint) -> wire.EndpointStatus:
        """Puts one in, such as ``{"name": "model", "target": "http://127.0.0.1:8000"}``. It is there
        when this returns."""
        return cast("wire.EndpointStatus", await self._t.json("POST", self._path(), endpoint, repeat=True))

    async def set(self, endpoint: wire.Endpoint) -> wire.EndpointStatus:
        """Puts one in, or switches the target of the one of that name for what begins from now on."""
        path = self._path(endpoint["name"])
        return cast("wire.EndpointStatus", await self._t.json("PUT", path, endpoint, repeat=True))

    async def remove(self, name: str, *, grace: float | None = None) -> wire.EndpointRemoval:
        """Takes one away. What is under way has `grace` seconds to end, five by default."""
        query = {"grace_ms": None if grace is None else to_ms(grace, "grace")}
        return cast("wire.EndpointRemoval", await self._t.json("DELETE", self._path(name), query=query))
