"""One daemon, as one caller sees it over HTTP."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from cloche import _address
from cloche._async.pulse import AsyncPulse
from cloche.errors import ClocheError, ConnectionBroken, DaemonSilent, invalid
from cloche.spec import default_host

if TYPE_CHECKING:
    import ssl

    import httpx

    from cloche._forward import Daemon


class AsyncTransport:
    """Sends requests and classifies errors. It holds only idle connections, and belongs to the event loop
    in which it is first used."""

    def __init__(
        self,
        host: str = "",
        token: str = "",
        *,
        verify: ssl.SSLContext | bool = True,
        silence: float | None = _address.SILENCE_SECONDS,
    ) -> None:
        self._silence = silence
        self.host = host or default_host()
        self._socket, self._base = _address.parse_host(self.host)
        self._token = _address.check_token(token or os.environ.get("CLOCHE_TOKEN", ""))
        self._asked = verify
        self._verify = _address.trusted(verify) if self._base.startswith("https:") else verify
        self._pulse: AsyncPulse | None = None
        self._pid = 0
        # Never closed: to close TLS here would end it for the process that has the connections.
        self._of_parents: list[AsyncPulse] = []

    def daemon(self) -> Daemon:
        """The same daemon, for connections that are no calls."""
        from cloche._forward import Daemon  # takes asyncio, which others have no need for

        return Daemon(self.host, self._socket, self._base, self._token, self._verify)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The address. The token stays here: another process has its own in ``CLOCHE_TOKEN``."""
        if not isinstance(self._asked, bool):
            text = "what https is checked against cannot be pickled"
            raise invalid("verify", text, "name the authorities by CLOCHE_CA_FILE")
        return _of_address, (type(self), self.host, self._asked)

    def _open(self) -> AsyncPulse:
        self._forget_parent()
        if self._pulse is None:
            self._pid = os.getpid()
            self._pulse = AsyncPulse(self._connect, self._base + "/healthz", self._silence)
        return self._pulse

    def _connect(self) -> httpx.AsyncClient:
        """Makes a client with one connection."""
        import socket

        import httpx  # takes longer than all the rest of a start

        headers = {"User-Agent": "cloche-python", "Accept-Encoding": "identity", "TE": ""}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        # Calls may wait for hours, so TCP too finds out who is gone.
        options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
        return httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                uds=self._socket,
                # Without https the authorities need not be read.
                verify=self._verify if self._base.startswith("https:") else False,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=1, keepalive_expiry=60),
                socket_options=None if self._socket else options,
                trust_env=False,
            ),
            headers=headers,
            timeout=httpx.Timeout(None, connect=_address.CONNECT_SECONDS),
            follow_redirects=False,
            trust_env=False,
        )

    def _forget_parent(self) -> None:
        """Drops connections that a process before a fork made. Two processes that use one connection
        get each other's answers."""
        if self._pulse is not None and self._pid != os.getpid():
            self._of_parents.append(self._pulse)
            self._pulse = None

    @contextlib.asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        query: _address.Query | None = None,
        content: bytes | AsyncIterator[bytes] | None = None,
        kind: str = "application/json",
        accept: str = "application/json",
        silence: float | None = 0,
    ) -> AsyncIterator[httpx.Response]:
        """An answer whose body the caller reads. It ends if the daemon no longer responds. `silence` is how
        many seconds can pass without data from a daemon that does respond: 0 is the default, and None is no
        limit."""
        pulse = self._open()
        import httpx

        headers = {"Accept": accept}
        if content is not None:
            headers["Content-Type"] = kind
        bound = _address.ANSWER_SECONDS if silence == 0 else silence
        if self._silence is None:
            bound = None if silence == 0 else silence
        timeout = httpx.Timeout(None, connect=_address.CONNECT_SECONDS, read=bound)
        url = self._base + _address.encode_query(path, query)
        async with pulse.watched() as exchange:
            try:
                async with exchange.http.stream(
                    method,
                    url,
                    content=content,
                    headers=headers,
                    timeout=timeout,
                    extensions=exchange.extensions,
                ) as answer:
                    pulse.hear()
                    if answer.status_code >= 300:
                        raise await _refusal(answer)
                    yield answer
            except (httpx.ConnectError, httpx.ConnectTimeout) as e:
                raise _address.not_reached(self.host, e) from e
            except (httpx.TransportError, httpx.StreamError) as e:
                if exchange.silent:
                    raise _address.silent(self.host, self._silence) from e
                raise _address.broken(self.host, e) from e

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: _address.Query | None = None,
        content: bytes | AsyncIterator[bytes] | None = None,
        kind: str = "application/json",
        silence: float | None = 0,
    ) -> bytes:
        """One call whose answer is read whole."""
        async with self.stream(method, path, query=query, content=content, kind=kind, silence=silence) as a:
            return await a.aread()

    async def json(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: _address.Query | None = None,
        repeat: bool = False,
        silence: float | None = 0,
    ) -> Any:
        """One call with JSON in and out. With `repeat` it is sent a second time when the connection
        breaks: it changes nothing, or names what it makes."""
        content = None if body is None else _address.encode_json(body)
        try:
            data = await self.call(method, path, query=query, content=content, silence=silence)
        except ConnectionBroken as e:
            if not repeat or isinstance(e, DaemonSilent):
                raise
            data = await self.call(method, path, query=query, content=content, silence=silence)
        return _address.decode_json(data) if data else None

    async def lines(
        self, path: str, *, body: object = None, query: _address.Query | None = None, silence: float | None = 0
    ) -> AsyncGenerator[bytes, None]:
        """The lines of an answer: to a POST with JSON if there is a `body`. One that ends within a line is
        broken."""
        lines = _address.Lines()
        method, content = ("GET", None) if body is None else ("POST", _address.encode_json(body))
        async with self.stream(
            method, path, query=query, content=content, accept="application/x-ndjson", silence=silence
        ) as a:
            async for data in a.aiter_raw():
                for line in lines.feed(data):
                    yield line
        if lines.cut:
            raise ConnectionBroken("unavailable", f"{self.host} broke its answer off", retryable=True)

    async def quietly(
        self, method: str, path: str, body: object = None, *, query: _address.Query | None = None
    ) -> None:
        """A call that cleans up: what is gone already is fine, and an error would hide a better one."""
        with contextlib.suppress(ClocheError):
            await self.json(method, path, body, query=query, repeat=True, silence=_address.FOLLOW_SECONDS)

    async def aclose(self) -> None:
        """Ends every connection. It can be used again."""
        self._forget_parent()
        pulse, self._pulse = self._pulse, None
        if pulse is not None:
            await pulse.aclose()


def _of_address(kind: type[AsyncTransport], host: str, verify: bool) -> AsyncTransport:
    return kind(host, verify=verify)


async def _refusal(answer: httpx.Response) -> ClocheError:
    data = bytearray()
    async for piece in answer.aiter_raw():
        data += piece
        if len(data) > _address.MAX_ERROR:
            break
    return _address.refused(bytes(data), answer.status_code)
