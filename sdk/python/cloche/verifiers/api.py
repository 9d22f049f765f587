"""The daemon's API, as far as a runtime needs it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
from yarl import URL

from cloche._forward import Daemon
from cloche.spec import default_host

CONNECT_SECONDS = 10.0
"""How long a connection to the daemon may take. Calls have no bound of their own: a create that
fetches an image, or a program, may take hours, and the caller can cancel."""

MAX_MESSAGE = 1 << 20
"""Bytes of the longest message of a stream; the daemon's own are shorter."""

ERROR_BYTES = 64 << 10
"""How much of an answer that is no success is read."""


class ApiError(Exception):
    """What the daemon refused or could not do.

    `code` is one of its closed list, such as ``denied`` or ``not_found``; ``unavailable`` is also
    said here, of a daemon that cannot be reached. `retryable` says that the same may succeed later.
    """

    def __init__(self, code: str, message: str, hint: str = "", retryable: bool = False) -> None:
        super().__init__(f"{message} ({hint})" if hint else message)
        self.code = code
        self.message = message
        self.hint = hint
        self.retryable = retryable

    @classmethod
    def of(cls, body: object, status: int = 0) -> ApiError:
        """The error in a body of JSON; of anything else, one that tells the status."""
        if isinstance(body, Mapping) and isinstance(inner := body.get("error", body), Mapping):
            if isinstance(inner.get("code"), str):
                return cls(
                    inner["code"],
                    str(inner.get("message", "")),
                    str(inner.get("hint", "")),
                    bool(inner.get("retryable", False)),
                )
        return cls("internal", f"the daemon answered with status {status} and no reason")


def _encode(path: str, query: Mapping[str, str]) -> str:
    """A path and a query as they go over the wire; names of files are bytes."""
    parts = urlencode(query, errors="surrogateescape", quote_via=quote, safe="/")
    return f"{path}?{parts}" if parts else path


class Api:
    """One daemon as one caller sees it.

    `host` is ``unix:///path``, ``tcp://host:port``, or an http or https address; empty is
    `default_host`. `token` is shown to daemons over TCP; empty is ``CLOCHE_TOKEN``. It belongs to the
    event loop in which it is first used, and is closed with `close`.
    """

    def __init__(self, host: str = "", token: str = "") -> None:
        self.host = host or default_host()
        self._token = token or os.environ.get("CLOCHE_TOKEN", "")
        parts = urlsplit(self.host)
        self._socket: str | None = None
        if parts.scheme == "unix":
            self._socket, self._base = self.host.removeprefix("unix://"), "http://cloche"
        elif parts.scheme == "tcp" and parts.netloc:
            self._base = f"http://{parts.netloc}"
        elif parts.scheme in ("http", "https") and parts.netloc:
            self._base = f"{parts.scheme}://{parts.netloc}"
        else:
            raise ApiError(
                "invalid_argument",
                f"{self.host!r} is no address of a daemon",
                "such as unix:///var/lib/cloche/cloche.sock or tcp://127.0.0.1:7070",
            )
        self._session: aiohttp.ClientSession | None = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector: aiohttp.BaseConnector = (
                aiohttp.UnixConnector(self._socket, limit=0) if self._socket else aiohttp.TCPConnector(limit=0)
            )
            headers = {"User-Agent": "cloche-verifiers"}
            if self._token:
                headers["Authorization"] = f"Bearer {self._token}"
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers=headers,
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            )
        return self._session

    def _url(self, path: str, query: Mapping[str, str] | None) -> URL:
        return URL(self._base + _encode(path, query or {}), encoded=True)

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        data: bytes | None = None,
    ) -> bytes:
        """One call: `body` goes as JSON, `data` as it is. The answer is read whole."""
        headers = {"Content-Type": "application/octet-stream"} if data is not None else {}
        try:
            async with self._open().request(
                method,
                self._url(path, query),
                json=body if data is None and body is not None else None,
                data=data,
                headers=headers,
                allow_redirects=False,
            ) as answer:
                if answer.status >= 300:
                    raise self._refused(await answer.content.read(ERROR_BYTES), answer.status)
                content: bytes = await answer.read()
                return content
        except (aiohttp.ClientError, OSError) as e:
            raise self._unreachable(e) from e

    async def json(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """`call` whose answer is one object of JSON."""
        answer = json.loads(await self.call(method, path, body=body) or b"{}")
        if not isinstance(answer, dict):
            raise ApiError("internal", f"{method} {path} was answered with something else than an object")
        return answer

    def daemon(self) -> Daemon:
        """The same daemon, for connections that are no calls."""
        return Daemon(self.host, self._socket, self._base, self._token, True)

    async def stream(self, path: str) -> aiohttp.ClientWebSocketResponse:
        """A WebSocket. The daemon asks whether we live; aiohttp answers while it is read."""
        try:
            return await self._open().ws_connect(
                self._url(path, None), max_msg_size=MAX_MESSAGE, autoclose=True
            )
        except aiohttp.WSServerHandshakeError as e:
            raise ApiError("internal", f"{path} was refused with status {e.status}") from e
        except (aiohttp.ClientError, OSError) as e:
            raise self._unreachable(e) from e

    async def close(self) -> None:
        """Ends every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def remove_now(self, ref: str) -> None:
        """Removes a sandbox without an event loop, for the end of the interpreter. A sandbox that is
        not there is no error; any other failure is raised as OSError or HTTPException."""
        parts = urlsplit(self._base)
        if self._socket:
            connection: http.client.HTTPConnection = _UnixConnection(self._socket)
        elif parts.scheme == "https":
            connection = http.client.HTTPSConnection(parts.netloc, timeout=CONNECT_SECONDS)
        else:
            connection = http.client.HTTPConnection(parts.netloc, timeout=CONNECT_SECONDS)
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        with contextlib.closing(connection):
            connection.request("DELETE", f"/v1/sandboxes/{quote(ref)}", headers=headers)
            connection.getresponse().read(ERROR_BYTES)

    def _unreachable(self, e: Exception) -> ApiError:
        return ApiError(
            "unavailable",
            f"no daemon answers at {self.host}: {type(e).__name__}",
            "start one with `cloche serve`, or set CLOCHE_HOST to one that runs",
            retryable=True,
        )

    @staticmethod
    def _refused(body: bytes, status: int) -> ApiError:
        try:
            return ApiError.of(json.loads(body), status)
        except ValueError:
            return ApiError.of(None, status)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("cloche", timeout=CONNECT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
