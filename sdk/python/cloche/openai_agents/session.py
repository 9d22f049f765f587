"""One session of the SDK, in one sandbox."""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path

from agents.sandbox import ExposedPortEndpoint, ExposedPortUnavailableError
from agents.sandbox.entries import BaseEntry
from agents.sandbox.materialization import MaterializationResult, MaterializedFile
from agents.sandbox.session import SandboxSession

from cloche._async import primitives
from cloche._async.client import AsyncSandboxClient
from cloche._async.handle import AsyncSandboxHandle
from cloche.errors import ClocheError
from cloche.openai_agents import failures
from cloche.openai_agents.options import ClocheSandboxClientOptions, ClocheSandboxSessionState
from cloche.openai_agents.ports import Ports
from cloche.openai_agents.terminals import TerminalSession
from cloche.spec import NewFile

LABEL = "openai-agents-session"
"""The label of a sandbox that holds the id of its session."""


class ClocheSandboxSession(TerminalSession):
    """Operations on one sandbox. `ClocheSandboxClient` makes it."""

    def __init__(
        self, state: ClocheSandboxSessionState, sandbox: AsyncSandboxHandle, api: AsyncSandboxClient
    ) -> None:
        super().__init__(state, sandbox, api)
        self._ports = Ports(api._t, sandbox.id)

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        if not await self.running():
            raise ExposedPortUnavailableError(
                port=port,
                exposed_ports=self.state.exposed_ports,
                reason="backend_unavailable",
                context={"backend": "cloche", "state": self._sandbox.info["state"]},
            )
        host, number = await self._ports.forward(port)
        return ExposedPortEndpoint(host=host, port=number)

    async def _begin_anew(self, snapshot: str) -> None:
        old = self._sandbox
        fresh = await make(
            self._api,
            self.state.options,
            self.state.manifest.root,
            str(self.state.session_id),
            snapshot=snapshot,
            nameless=True,  # the old one still has the name
        )
        self._sandbox, self.state.sandbox_id = fresh, fresh.id
        self._early = None
        ports, self._ports = self._ports, Ports(self._api._t, fresh.id)
        # Accounts are in the root, which is new.
        self._start_system_state_preserved = self._accounts_made = False
        await primitives.finish(_end(ports, old))

    async def _terminate_ambiguous_mount_transition(self) -> None:
        # A pause would keep what must not be kept.
        await _end(self._ports, self._sandbox)

    async def _shutdown_backend(self) -> None:
        await self._ports.aclose()
        if not self.state.options.pause_on_exit:
            await self._sandbox.remove()
            return
        try:
            await self._suspend()
        except ClocheError as e:
            # It is paused already, or is no more.
            if e.code != "wrong_state" and not failures.is_gone(e):
                raise

    async def _suspend(self) -> None:
        """Saves the sandbox to the disk, or pauses it in memory where its engine cannot save that."""
        try:
            await self._sandbox.suspend()
        except ClocheError as e:
            if e.code != "unsupported":
                raise
            await self._sandbox.pause()


async def _end(ports: Ports, sandbox: AsyncSandboxHandle) -> None:
    await ports.aclose()
    await sandbox.remove()


async def make(
    api: AsyncSandboxClient,
    options: ClocheSandboxClientOptions,
    root: str,
    session: str,
    *,
    snapshot: str = "",
    nameless: bool = False,
    files: Mapping[str, NewFile] | None = None,
) -> AsyncSandboxHandle:
    """Makes a sandbox for a session, with files in its workspace. A `nameless` one gets its name from the
    daemon."""
    spec = options.spec(root.rstrip("/"), labels={LABEL: session}, snapshot=snapshot)
    if files:
        spec = dataclasses.replace(spec, files={posixpath.join(root, n): data for n, data in files.items()})
    return await (api.create(spec, name="") if nameless else api.create(spec))


class WrappedSession(SandboxSession):
    """What callers see. The SDK's own would apply a manifest by many small calls."""

    async def _apply_manifest(
        self, *, only_ephemeral: bool = False, provision_accounts: bool = True
    ) -> MaterializationResult:
        return await self._inner._apply_manifest(
            only_ephemeral=only_ephemeral, provision_accounts=provision_accounts
        )

    async def provision_manifest_accounts(self) -> None:
        """Makes the users and groups that the image has not."""
        await self._inner.provision_manifest_accounts()

    async def _apply_entry_batch(
        self, entries: Sequence[tuple[Path, BaseEntry]], *, base_dir: Path
    ) -> list[MaterializedFile]:
        return await self._inner._apply_entry_batch(entries, base_dir=base_dir)
