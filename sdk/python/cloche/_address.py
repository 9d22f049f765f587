"""How a daemon is addressed, and what goes into a request. No part of it waits for anything."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from cloche.errors import (
    ClocheError,
    ConnectionBroken,
    DaemonSilent,
    SandboxUnavailable,
    Unauthenticated,
    invalid,
    of_body,
)

CONNECT_SECONDS = 10.0
"""How long a connection may take."""

SILENCE_SECONDS = 30.0
"""How long a daemon may answer nothing at all where the client says nothing else. It is asked for a sign
of life while a call waits, so a call that takes long is no silence."""

ANSWER_SECONDS = 330.0
"""How long the answer of a daemon that gives signs of life may be silent: longer than the daemon's own
deadlines for calls, changes and transfers."""

WORK_SECONDS = 2760.0
"""The same for what may take long: longer than the daemon's deadline for work, such as a create that
fetches an image."""

FOLLOW_SECONDS = 60.0
"""After such a silence a followed answer counts as broken: the daemon writes something every 15 seconds."""

MAX_LINE = 16 << 20
"""Bytes of the longest line of an answer."""

MAX_ERROR = 1 << 20
"""How much of an answer that is no success is read."""

CHUNK = 128 << 10
"""Bytes that are read from a source, or handed out, at once."""

if TYPE_CHECKING:
    import ssl

_HOSTS = "give unix:///path/to/cloche.sock, tcp://host:port or https://host:port"

Query = Mapping[str, "str | int | bool | Sequence[str] | None"]


def parse_host(host: str) -> tuple[str | None, str]:
    """The socket's path, where it is one, and the base of every URL."""
    parts = urlsplit(host)
    if parts.scheme == "unix":
        path = host[len("unix://") :]
        if not host.startswith("unix://") or (not path.startswith("/") and path[1:3] != ":/"):
            raise invalid("host", f"host {host!r}: the socket's path is not absolute", _HOSTS)
        return path, "http://cloche"
    if "@" in parts.netloc or parts.query or parts.fragment or parts.path not in ("", "/") or not parts.netloc:
        raise invalid("host", f"host {host!r} is no address of a daemon", _HOSTS)
    if parts.scheme == "tcp":
        if parts.port is None:
            raise invalid("host", f"host {host!r}: the port is missing", _HOSTS)
        return None, f"http://{parts.netloc}"
    if parts.scheme not in ("http", "https"):
        raise invalid("host", f"host {host!r}: scheme {parts.scheme!r} is unknown", _HOSTS)
    return None, f"{parts.scheme}://{parts.netloc}"


def trusted(verify: ssl.SSLContext | bool) -> ssl.SSLContext | bool:
    """What https is checked against: the system's authorities and those in the file ``CLOCHE_CA_FILE``,
    where the caller says nothing else."""
    if verify is not True:
        return verify
    import ssl  # with a daemon over http there is no need for it

    context = ssl.create_default_context()
    usual = ssl.get_default_verify_paths()
    if not usual.cafile and not usual.capath:  # a Python without the system's authorities
        import certifi

        context.load_verify_locations(certifi.where())
    if file := os.environ.get("CLOCHE_CA_FILE"):
        try:
            context.load_verify_locations(file)
        except (OSError, ssl.SSLError) as e:
            raise invalid(
                "ca_file",
                f"the authorities for https cannot be read from {file!r}: {e}",
                "CLOCHE_CA_FILE names a file of certificates in PEM",
            ) from e
    return context


def of_program(timeout: float | None, beside: float) -> float | None:
    """How long the answer about a program may be silent that has `timeout` seconds, with so many `beside`
    for all else. None is without an end."""
    return None if timeout is None else timeout + beside


def check_token(token: str) -> str:
    """The token, which is one word. An error does not show it."""
    if any(c in token for c in "\r\n\0 ") or not token.isascii():
        raise invalid("token", "the token holds something that no token has, such as a space", "pass it alone")
    return token


def same_process(answer: Mapping[str, object], exec_id: str) -> None:
    """Raises `ClocheError` for an answer about another process than the one that was asked for."""
    if answer.get("exec_id") != exec_id:
        text = f"the answer is of another process than {exec_id}"
        hint = "two processes or two event loops may use one connection"
        raise ClocheError("internal", text, hint=hint)


def sandbox_path(ref: str, *rest: str) -> str:
    """The path of a sandbox, by its id or name, and of what it has."""
    if not ref:
        raise invalid("ref", "which sandbox is meant was not said", "give its id or name")
    for part in (ref, *rest):
        if part in ("", ".", ".."):
            # Such a part is taken out of a path on its way, so that it would name something else.
            raise invalid("ref", f"{part!r} is no id or name", "give what a list shows")
    return "/v1/sandboxes/" + "/".join(quote(p, safe="") for p in (ref, *rest))


def encode_query(path: str, query: Query | None) -> str:
    """A path and a query as they go over the wire. Names of files are bytes, with surrogates for what
    is not UTF-8."""
    pairs: list[tuple[str, str]] = []
    for k, v in (query or {}).items():
        if v is None:
            continue
        if isinstance(v, bool):
            pairs.append((k, "true" if v else "false"))
        elif isinstance(v, (str, int)):
            pairs.append((k, str(v)))
        else:
            pairs.extend((k, item) for item in v)
    try:
        text = urlencode(pairs, errors="surrogateescape", quote_via=quote, safe="/")
    except UnicodeEncodeError as e:
        raise invalid("path", f"{e.object!r} is no name of a file") from e
    return f"{path}?{text}" if text else path


def encode_json(body: object) -> bytes:
    """A body. Text that is no Unicode would arrive as something else, and is refused."""
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as e:
        raise invalid(
            "", "the request holds text that is not valid Unicode", "give bytes as bytes, not as text"
        ) from e
    except TypeError as e:
        raise invalid("", f"the request cannot be sent as JSON: {e}") from e


def decode_json(data: bytes) -> object:
    """A whole answer."""
    try:
        return json.loads(data)
    except ValueError as e:
        raise ClocheError("internal", "something that is no daemon of Cloche's answered: it is no JSON") from e


def refused(data: bytes, status: int) -> ClocheError:
    """The error in an answer that is no success."""
    if data.startswith(b"Client sent an HTTP request to an HTTPS server"):
        return invalid("host", "the daemon speaks TLS", "name it as https://host:port")
    try:
        body = json.loads(data)
    except ValueError:
        body = None
    return of_body(body, status)


def not_reached(host: str, cause: BaseException) -> ClocheError:
    """The error for a daemon to which no connection could be made."""
    number = _errno(cause)
    if number == errno.EACCES:
        return Unauthenticated(
            "unauthenticated",
            f"the daemon's socket at {host} cannot be opened by this user",
            hint="it belongs to another user, or to a group that this process is not in",
        )
    for e in _chain(cause):
        if (verdict := getattr(e, "verify_message", None)) is not None:
            return SandboxUnavailable(
                "unavailable",
                f"the certificate of the daemon at {host} is not trusted: {verdict}",
                hint="call it by a name in its certificate; "
                "set CLOCHE_CA_FILE to a file with its authority, where the system does not have that",
            )
        if type(e).__module__ == "ssl" and (reason := getattr(e, "reason", None)):
            return SandboxUnavailable(
                "unavailable",
                f"there is no TLS with the daemon at {host}: {reason}",
                hint="name it as tcp://host:port if it does not speak TLS",
            )
        if isinstance(e, socket.gaierror):
            return SandboxUnavailable(
                "unavailable", f"the name of the daemon at {host} is not known: {e.strerror}", retryable=True
            )
    return SandboxUnavailable(
        "unavailable",
        f"no daemon is listening at {host}",
        hint='start one with "cloche serve", set CLOCHE_HOST to one that runs, or use cloche.local()',
        retryable=True,
    )


def silent(host: str, seconds: float | None) -> DaemonSilent:
    """The error for a daemon that answers nothing, for so many seconds where that is known."""
    how_long = "as long as this client waits" if seconds is None else f"{seconds:g} seconds"
    return DaemonSilent(
        "unavailable",
        f"the daemon at {host} has answered nothing for {how_long}",
        hint="it may be stopped or overloaded; what was asked may be done yet, so look before you ask again",
    )


def broken(host: str, cause: BaseException) -> ConnectionBroken:
    """The error for an answer that did not come whole."""
    if type(cause).__name__ == "ReadTimeout":
        return silent(host, None)
    return ConnectionBroken(
        "unavailable", f"the connection to {host} broke: {type(cause).__name__}", retryable=True
    )


def _chain(e: BaseException | None) -> Iterator[BaseException]:
    for _ in range(10):
        if e is None:
            return
        yield e
        e = e.__cause__ or e.__context__


def _errno(cause: BaseException) -> int | None:
    for e in _chain(cause):
        if isinstance(e, OSError) and e.errno is not None:
            return e.errno
    return None


class Lines:
    """Takes an answer apart into its lines; empty ones mean nothing and are left out."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes."""
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = bytes(self._rest) + whole[0]
            self._rest.clear()
        self._rest += rest
        if len(self._rest) > MAX_LINE:
            raise ClocheError("internal", f"the daemon answered with a line over {MAX_LINE} bytes")
        return [line for line in whole if line]

    @property
    def cut(self) -> bool:
        """Whether the answer ended within a line."""
        return bool(self._rest)
