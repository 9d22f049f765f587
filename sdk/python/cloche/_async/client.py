"""The client, which creates and finds sandboxes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from cloche import _address
from cloche._async import primitives
from cloche._async.handle import AsyncSandboxHandle
from cloche._async.transport import AsyncTransport
from cloche.errors import ClocheError, ConnectionBroken, NotFound
from cloche.spec import ExecResult, SandboxSpec, argument_list, options, spec_of

if TYPE_CHECKING:
    import ssl

    from typing_extensions import Unpack

    from cloche import wire
    from cloche.spec import ExecOptions, SandboxFields


class AsyncSandboxClient:
    """One daemon, as one caller sees it.

    `host` is ``unix:///path``, ``tcp://host:port``, or an http or https address. Empty is
    ``CLOCHE_HOST``, or else the socket of this user's daemon. `token` is sent to daemons over TCP. Empty
    is ``CLOCHE_TOKEN``. `verify` says how to verify https: ``True`` uses the system's certificate
    authorities and those in the file ``CLOCHE_CA_FILE``. If the daemon does not respond at all for
    `silence` seconds, every call that waits for it raises `cloche.errors.DaemonSilent`. None waits
    indefinitely. A long call does not count as silence, because the client checks in the meantime that
    the daemon responds.

    The constructor does not connect. At first use, or at the beginning of a ``with``, a daemon that is not
    running or refuses this caller raises `cloche.SandboxUnavailable`. Code never runs on this machine
    instead.
    """

    def __init__(
        self,
        host: str = "",
        token: str = "",
        *,
        verify: ssl.SSLContext | bool = True,
        silence: float | None = _address.SILENCE_SECONDS,
    ) -> None:
        self._t = AsyncTransport(host, token, verify=verify, silence=silence)

    @property
    def host(self) -> str:
        """The daemon's address."""
        return self._t.host

    def create(
        self, spec: SandboxSpec | None = None, /, **fields: Unpack[SandboxFields]
    ) -> primitives.Making[AsyncSandboxHandle]:
        """Creates a sandbox from `spec`, overridden by `fields`, and returns when commands can run in it.
        Use it in a ``with``, whose end removes the sandbox, or remove it later. An error or a cancelled
        wait leaves nothing behind."""
        return primitives.Making(self._create(spec, **fields))

    async def _create(self, spec: SandboxSpec | None, /, **fields: Unpack[SandboxFields]) -> AsyncSandboxHandle:
        body = spec_of(spec, **fields).to_wire()
        own = "idempotency_key" not in body
        key = body.setdefault("idempotency_key", f"py-{os.urandom(16).hex()}")
        try:
            info = await self._t.json("POST", "/v1/sandboxes", body, repeat=True, silence=_address.WORK_SECONDS)
        except BaseException as e:
            # The name is in the answer that was lost.
            if own and (isinstance(e, ConnectionBroken) or not isinstance(e, ClocheError)):
                query = {"idempotency_key": key}
                await primitives.finish(self._t.quietly("DELETE", "/v1/sandboxes", query=query))
            raise
        return AsyncSandboxHandle(self._t, info)

    async def get(self, ref: str) -> AsyncSandboxHandle:
        """The sandbox of that id or name. `cloche.NotFound` where this caller has none."""
        return AsyncSandboxHandle(self._t, await self._t.json("GET", _address.sandbox_path(ref), repeat=True))

    async def list(
        self, *, labels: Mapping[str, str] | None = None, states: Sequence[wire.State] = ()
    ) -> list[AsyncSandboxHandle]:
        """The caller's own sandboxes, newest first: those with all of `labels`, in any of `states`."""
        out: list[AsyncSandboxHandle] = []
        cursor = ""
        while True:
            query: dict[str, str | int | Sequence[str] | None] = {
                "label": [f"{k}={v}" for k, v in (labels or {}).items()],
                "state": states,
                "limit": 1000,
                "cursor": cursor or None,
            }
            page: wire.SandboxList = await self._t.json("GET", "/v1/sandboxes", query=query, repeat=True)
            out += [AsyncSandboxHandle(self._t, info) for info in page["sandboxes"] or []]
            after = page.get("next", "")
            if not after or after == cursor:
                return out
            cursor = after

    async def remove(self, ref: str) -> wire.Sandbox | None:
        """Removes a sandbox with all its data and returns its last record, which says what could not be
        removed yet. Returns None if the sandbox does not exist."""
        try:
            answer = await self._t.json("DELETE", _address.sandbox_path(ref), repeat=True)
        except NotFound:
            return None
        return cast("wire.Sandbox", answer)

    async def run_python(
        self,
        code: str,
        spec: SandboxSpec | None = None,
        /,
        *,
        timeout: float | None = None,
        exec: ExecOptions | None = None,
        **fields: Unpack[SandboxFields],
    ) -> ExecResult:
        """Runs a program by python3 in a sandbox of its own, which the daemon removes, whatever becomes
        of this process. After `timeout` seconds the program is killed; what it wrote so far is
        in the result."""
        return await self._run({"python": code}, spec, timeout, exec, fields)

    async def run_shell(
        self,
        script: str,
        spec: SandboxSpec | None = None,
        /,
        *,
        timeout: float | None = None,
        exec: ExecOptions | None = None,
        **fields: Unpack[SandboxFields],
    ) -> ExecResult:
        """The same with a script for /bin/sh."""
        return await self._run({"shell": script}, spec, timeout, exec, fields)

    async def run(
        self,
        argv: Sequence[str],
        spec: SandboxSpec | None = None,
        /,
        *,
        timeout: float | None = None,
        exec: ExecOptions | None = None,
        **fields: Unpack[SandboxFields],
    ) -> ExecResult:
        """The same with a command, by no shell: ``["ls", "-l"]``."""
        return await self._run(argument_list(argv), spec, timeout, exec, fields)

    async def _run(
        self,
        what: wire.ExecRequest,
        spec: SandboxSpec | None,
        timeout: float | None,
        given: ExecOptions | None,
        fields: SandboxFields,
    ) -> ExecResult:
        request: wire.RunRequest = {
            "spec": spec_of(spec, **fields).to_wire(),
            "exec": options(what, timeout, given or {}),
        }
        silence = _address.of_program(timeout, _address.WORK_SECONDS)
        answer: wire.RunResult = await self._t.json("POST", "/v1/run", request, silence=silence)
        return ExecResult.of(answer["result"])

    async def version(self) -> dict[str, Any]:
        """What the daemon is."""
        return cast("dict[str, Any]", await self._t.json("GET", "/v1/version", repeat=True))

    async def request(
        self, method: str, path: str, body: object = None, *, query: _address.Query | None = None
    ) -> Any:
        """A call of the API for which there is no method here, such as ``GET /v1/status``: JSON in and out."""
        return await self._t.json(method, path, body, query=query, silence=_address.WORK_SECONDS)

    async def aclose(self) -> None:
        """Ends idle connections. Sandboxes go on."""
        await self._t.aclose()

    async def __aenter__(self) -> AsyncSandboxClient:
        try:
            await self.version()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
