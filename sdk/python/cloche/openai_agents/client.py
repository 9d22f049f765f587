"""The client: it makes sandboxes for sessions, and finds them again."""

from __future__ import annotations

import posixpath
import uuid
from types import TracebackType
from typing import TYPE_CHECKING, cast

from agents.sandbox import ErrorCode, Manifest
from agents.sandbox.errors import ConfigurationError
from agents.sandbox.session import (
    BaseSandboxClient,
    BaseSandboxSession,
    Dependencies,
    Instrumentation,
    SandboxSession,
    SandboxSessionState,
)
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot

from cloche._async import primitives
from cloche._async.client import AsyncSandboxClient
from cloche._async.handle import AsyncSandboxHandle
from cloche.errors import ClocheError
from cloche.openai_agents import failures
from cloche.openai_agents.manifests import ACCOUNT
from cloche.openai_agents.options import ClocheSandboxClientOptions, ClocheSandboxSessionState
from cloche.openai_agents.session import ClocheSandboxSession, WrappedSession, make

if TYPE_CHECKING:
    import ssl

    from cloche import wire


class ClocheSandboxClient(BaseSandboxClient[ClocheSandboxClientOptions]):
    """Sandboxes of one daemon's. `host`, `token` and `verify` are those of `cloche.AsyncSandboxClient`; the
    token is never kept in a state, so a caller that resumes one shows a token of its own.

    It belongs to the event loop in which it is first used.
    """

    backend_id = "cloche"
    supports_default_options = True

    def __init__(
        self,
        host: str = "",
        token: str = "",
        *,
        verify: ssl.SSLContext | bool = True,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
    ) -> None:
        self._api = AsyncSandboxClient(host, token, verify=verify)
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: ClocheSandboxClientOptions | None = None,
    ) -> SandboxSession:
        """Makes a sandbox. An error or a cancelled call leaves nothing behind."""
        options = options if options is not None else ClocheSandboxClientOptions()
        manifest = self._validate_manifest_for_create(manifest if manifest is not None else Manifest())
        _check(manifest)
        session_id = uuid.uuid4()
        sandbox = await make(self._api, options, manifest.root, str(session_id))
        try:
            state = ClocheSandboxSessionState(
                session_id=session_id,
                snapshot=resolve_snapshot(snapshot, str(session_id)),
                manifest=manifest,
                exposed_ports=options.exposed_ports,
                host=self._api.host,
                sandbox_id=sandbox.id,
                options=options,
            )
            return self._wrap_session(
                ClocheSandboxSession(state, sandbox, self._api), instrumentation=self._instrumentation
            )
        except BaseException:
            await primitives.finish(sandbox.remove())
            raise

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """The session of a state: in its sandbox where that is there, and else in one like it. Only a daemon
        that says that there is no such sandbox any more makes this make another."""
        if not isinstance(state, ClocheSandboxSessionState):
            raise TypeError("ClocheSandboxClient.resume wants a ClocheSandboxSessionState")
        state.assert_path_grants_rebound()
        sandbox, ended = await self._find(state)
        if sandbox is not None:
            inner = ClocheSandboxSession(state, sandbox, self._api)
            inner._set_start_state_preserved(True, system=True)
            return self._wrap_session(inner, instrumentation=self._instrumentation)
        if state.host != self._api.host:
            raise ConfigurationError(
                message=f"{self._api.host} has no sandbox {state.sandbox_id}: the state is of {state.host}",
                error_code=ErrorCode.SANDBOX_CONFIG_INVALID,
                op="start",
                context={"backend": "cloche", "sandbox_id": state.sandbox_id},
                retryable=False,
            )
        return await self._replace(state, ended)

    async def _find(
        self, state: ClocheSandboxSessionState
    ) -> tuple[AsyncSandboxHandle | None, AsyncSandboxHandle | None]:
        """The sandbox where it runs, and else what is left of it."""
        try:
            sandbox = await self._api.get(state.sandbox_id)
            if sandbox.info["state"] in ("paused", "suspended"):
                await sandbox.resume()
            elif sandbox.info["state"] == "stopping":
                await sandbox.stop()  # which is its end that is waited for
        except ClocheError as e:
            if not failures.is_gone(e):
                raise
            return None, None
        if sandbox.info["state"] in failures.GONE_STATES:
            return None, sandbox
        return sandbox, None

    async def _replace(
        self, state: ClocheSandboxSessionState, ended: AsyncSandboxHandle | None
    ) -> SandboxSession:
        """A sandbox like the one that is gone, with the files of its workspace where they are still there."""
        rescued = await self._rescue(state, ended) if ended is not None else ""
        sandbox, early = None, None
        if not rescued and not state.native_snapshot:
            gone = ended or AsyncSandboxHandle(
                self._api._t, cast("wire.Sandbox", {"id": state.sandbox_id, "cwd": "/"})
            )
            early = await ClocheSandboxSession(state, gone, self._api).early()
        try:
            sandbox = await make(
                self._api,
                state.options,
                state.manifest.root,
                str(state.session_id),
                snapshot=rescued,
                files=early.files if early is not None else None,
            )
            if ended is not None:
                await ended.remove()
            state.sandbox_id = sandbox.id
            if not rescued:
                state.workspace_root_ready = False
            inner = ClocheSandboxSession(state, sandbox, self._api)
            inner._early = early
            inner._set_start_state_preserved(bool(rescued), system=False)
            return self._wrap_session(inner, instrumentation=self._instrumentation)
        except BaseException:
            if sandbox is not None:
                await primitives.finish(sandbox.remove())
            raise
        finally:
            if rescued:
                await primitives.finish(self._api._t.quietly("DELETE", f"/v1/snapshots/{rescued}"))

    async def _rescue(self, state: ClocheSandboxSessionState, ended: AsyncSandboxHandle) -> str:
        """A snapshot of the workspace of one that has ended, if it can be made; empty for none."""
        if state.options.workspace or not state.workspace_root_ready:
            return ""
        try:
            return (await ended.snapshot(scope="workspace"))["id"]
        except ClocheError as e:
            if failures.retryable(e) is not False:
                raise
            return ""

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Removes the sandbox of a session, or suspends it if its options say so. One that is gone is fine."""
        inner = session._inner
        if not isinstance(inner, ClocheSandboxSession):
            raise TypeError("ClocheSandboxClient.delete wants a session that it has made")
        await inner.shutdown()
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """The state of what `serialize_session_state` has made."""
        return self._deserialize_session_state_payload(payload, ClocheSandboxSessionState)

    def _wrap_session(
        self, inner: BaseSandboxSession, *, instrumentation: Instrumentation | None = None
    ) -> SandboxSession:
        return WrappedSession(inner, instrumentation=instrumentation, dependencies=self._resolve_dependencies())

    async def aclose(self) -> None:
        """Ends idle connections. Sandboxes go on."""
        await self._api.aclose()

    async def __aenter__(self) -> ClocheSandboxClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _check(manifest: Manifest) -> None:
    """Refuses what no sandbox of Cloche's can be."""
    root = posixpath.normpath(manifest.root)
    if not root.startswith("/") or root.strip("/") == "" or root != manifest.root.rstrip("/"):
        _refuse(f"the root of the manifest is {manifest.root!r}, and must be absolute, plain and not /")
    for grant in manifest.extra_path_grants:
        if grant.host_path is not None:
            _refuse(f"the grant of {grant.path} binds a directory of the host's, which is the operator's to do")
    accounts = [u.name for u in manifest.users]
    accounts += [n for g in manifest.groups for n in (g.name, *(u.name for u in g.users))]
    for name in accounts:
        if not ACCOUNT.fullmatch(name):
            _refuse(f"{name!r} is not the name of a user or a group")


def _refuse(message: str) -> None:
    raise ConfigurationError(
        message=message,
        error_code=ErrorCode.SANDBOX_CONFIG_INVALID,
        op="start",
        context={"backend": "cloche"},
        retryable=False,
    )
