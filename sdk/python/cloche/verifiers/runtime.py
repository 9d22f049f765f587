"""A Cloche sandbox as a runtime of verifiers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from contextlib import AsyncExitStack
from pathlib import PurePosixPath
from typing import Any, ClassVar
from urllib.parse import urlsplit

import aiohttp
from verifiers.v1.errors import SandboxError
from verifiers.v1.runtimes import BaseRuntimeInfo, ProgramResult, Runtime, RuntimeProcess
from verifiers.v1.runtimes.base import register
from verifiers.v1.utils.scope import run_scope

from cloche._address import sandbox_path
from cloche._forward import AsyncForward
from cloche.verifiers import process
from cloche.verifiers.api import Api, ApiError
from cloche.verifiers.bridge import Bridge, Route
from cloche.verifiers.config import ClocheConfig

logger = logging.getLogger(__name__)

GB = 1_000_000_000

ENDPOINT = "verifiers"
"""The name of the endpoint in every sandbox."""

_BODY_BYTES = 1 << 30
_DAY_MS = 24 * 60 * 60 * 1000

# Run with the log as $1 and the program after it.
_TO_LOG = 'log=$1; shift; exec "$@" >"$log" 2>&1 </dev/null'


class ClocheRuntime(Runtime):
    """A sandbox of its own, for ``Agent.run(task, runtime=...)``.

    It starts with the first run that is placed in it, so that what goes wrong then is on that run's
    trace, or with `start`. The sandbox lives as long as a connection of this process: when `stop` is
    called, the process is killed or the machine is cut off, it goes with everything in it.
    """

    supports_user: ClassVar[bool] = True

    def __init__(self, config: ClocheConfig | None = None, name: str | None = None) -> None:
        super().__init__(name)
        config = config or ClocheConfig()
        self.config = config.model_copy(update={"workdir": config.directory})
        self.info: BaseRuntimeInfo = self.config.record()
        self._api: Api | None = None
        self._route: Route | None = None
        self._stack = AsyncExitStack()
        self._starting = asyncio.Lock()
        self._live: set[process.ClocheProcess] = set()
        self._lost = ""
        self._removed = False
        self._rules: tuple[set[str], set[str]] = (set(), set())
        register(self)

    # -- life

    async def start(self) -> None:
        """Makes the sandbox. What it cannot be is a SandboxError, and nothing is left behind then."""
        async with self._starting:
            if self._api is not None:
                return
            if self.stopped:
                raise SandboxError("the sandbox was stopped")
            try:
                await self._start()
            except ApiError as e:
                raise SandboxError(f"make a sandbox: {e}") from e

    async def _start(self) -> None:
        async with AsyncExitStack() as stack:
            config = self.config
            api = Api(config.host)
            stack.push_async_callback(api.close)
            base, route = await stack.enter_async_context(
                Bridge.route(config.callback_host, config.callback_port)
            )
            hold = await api.stream("/v1/hold")
            stack.push_async_callback(hold.close)
            await hold.send_json({"hold": self._spec(base)})
            sandbox = await _made(hold)
            self.info.id = sandbox
            watch = asyncio.create_task(self._watch(hold))
            stack.push_async_callback(_end, watch)
            await api.call("POST", f"/v1/sandboxes/{sandbox}/files/mkdir", query={"path": config.directory})
            self._api, self._route = api, route
            self._stack = stack.pop_all()
        logger.info("cloche: sandbox %s up (image=%s)", sandbox, config.image)

    def _spec(self, target: str) -> dict[str, Any]:
        config = self.config
        spec: dict[str, Any] = {
            "image": config.image,
            "cwd": config.directory,
            "network": "on" if config.networked else "none",
            "transient": True,
            "labels": {"verifiers.run": run_scope(), "verifiers.rollout": self.name},
            "endpoints": [
                {
                    "name": ENDPOINT,
                    "listen": f"127.0.0.1:{config.endpoint_port}",
                    "target": target,
                    # What verifiers tells rollouts apart by.
                    "http": {"pass_headers": ["Authorization", "X-Api-Key"]},
                    # A model may think for hours before its first byte.
                    "limits": {
                        "request_bytes": _BODY_BYTES,
                        "header_ms": _DAY_MS,
                        "idle_ms": _DAY_MS,
                    },
                }
            ],
        }
        if config.profile:
            spec["profile"] = config.profile
        if config.networked:
            self._rules = config.egress(setup=True)
            spec["egress"] = {"allow": sorted(self._rules[0]), "deny": sorted(self._rules[1])}
        limits: dict[str, float | int] = {}
        if config.cpu is not None:
            limits["cpus"] = config.cpu
        if config.memory is not None:
            limits["memory_bytes"] = int(config.memory * GB)
        if config.disk is not None:
            limits["disk_bytes"] = int(config.disk * GB)
        if limits:
            spec["limits"] = limits
        return spec

    async def _watch(self, hold: aiohttp.ClientWebSocketResponse) -> None:
        # Reading answers the daemon's pings, and tells when the sandbox goes.
        async for message in hold:
            if message.type is aiohttp.WSMsgType.TEXT and "error" in (told := json.loads(message.data)):
                self._lost = str(ApiError.of(told))
        self._lost = self._lost or "the daemon let go of it"

    async def teardown(self) -> None:
        api, sandbox = self._api, self.info.id
        stack, self._stack = self._stack, AsyncExitStack()
        if api is None:
            return
        try:
            for live in list(self._live):
                await live.leave()
            if not self._removed:
                with contextlib.suppress(ApiError):  # gone already, or gone with the connection
                    await api.call("DELETE", f"/v1/sandboxes/{sandbox}")
                self._removed = True
        finally:
            self._api = None
            await stack.aclose()

    def cleanup(self) -> None:
        """For the end of the interpreter, where no event loop runs: the connection that holds the sandbox
        ends with the process too, and this does not wait for that."""
        if self._api is None or self._removed or self.info.id is None:
            return
        self._removed = True
        with contextlib.suppress(Exception):
            self._api.remove_now(self.info.id)

    async def alive(self) -> bool:
        if self._api is None or self._lost:
            return False
        try:
            sandbox = await self._api.json("GET", f"/v1/sandboxes/{self.info.id}")
        except ApiError:
            return False
        return sandbox.get("state") in ("running", "paused")

    def _up(self) -> tuple[Api, str]:
        if self._api is None or self.info.id is None:
            raise SandboxError("the sandbox does not run: start() comes first, stop() last")
        if self._lost:
            raise SandboxError(f"the sandbox was lost: {self._lost}")
        return self._api, self.info.id

    # -- network

    def host_url(self, url: str) -> str:
        """The address inside of a service on this machine; other addresses stay as they are. From here on
        programs inside can reach that service, by the sandbox's endpoint."""
        host = urlsplit(url).hostname or ""
        if host != "localhost" and not host.startswith("127.") and host != "::1":
            return url
        if self._route is None:
            raise SandboxError("the sandbox does not run: no address inside leads anywhere")
        return f"http://127.0.0.1:{self.config.endpoint_port}{self._route.add(url)}"

    async def prepare_setup(self) -> None:
        await self.start()
        await super().prepare_setup()

    async def prepare_execution(self, routes: list[str] | None) -> None:
        """Puts the network rules of the agent in force, or with None those of setting up, and returns when
        the daemon says that these and no others are. `routes` lead through the endpoint, which no rule
        of the network's touches."""
        if not self.config.networked:
            return
        api, sandbox = self._up()
        allow, deny = self.config.egress(setup=routes is None)
        path = f"/v1/sandboxes/{sandbox}/egress"
        has_allow, has_deny = self._rules
        change = {
            "allow": sorted(allow - has_allow),
            "deny": sorted(deny - has_deny),
            "remove": sorted(has_allow - allow) + [f"deny {rule}" for rule in sorted(has_deny - deny)],
        }
        try:
            if any(change.values()):
                await api.json("PATCH", path, {k: v for k, v in change.items() if v})
            told = (await api.json("GET", path)).get("egress") or {}
        except ApiError as e:
            raise SandboxError(f"network policy: {e}") from e
        in_force = set(told.get("allow") or ()), set(told.get("deny") or ())
        if in_force != (allow, deny):
            raise SandboxError(
                f"network policy: {sorted(in_force[0])} may leave instead of {sorted(allow)}; "
                "the agent is not started"
            )
        self._rules = in_force

    async def expose(self, port: int) -> str:
        """A port of this machine's loopback that leads to one inside, until the runtime stops."""
        api, sandbox = self._up()
        path = sandbox_path(sandbox, "ports", str(port))
        forward = await self._stack.enter_async_context(AsyncForward(api.daemon(), path))
        return forward.url

    # -- programs

    async def _begin(self, argv: list[str], env: dict[str, str], *, open_stdin: bool = False) -> str:
        api, sandbox = self._up()
        return await process.start(
            api,
            sandbox,
            argv,
            env=self.process_env(env),
            cwd=self.config.directory,
            user=self.user,
            open_stdin=open_stdin,
        )

    async def _collect(
        self,
        argv: list[str],
        env: dict[str, str],
        *,
        stdin: bytes | None = None,
        tail: bool = False,
    ) -> tuple[int, bytes, bytes]:
        try:
            exec_id = await self._begin(argv, env, open_stdin=stdin is not None)
        except process.Ended as e:
            return e.exit_code, b"", str(e).encode()
        api, sandbox = self._up()
        return await process.collect(api, sandbox, exec_id, stdin=stdin, tail=tail)

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        return _result(await self._collect(argv, env))

    async def run_program(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Like `run`; of a program that writes without end the newest output is kept."""
        return _result(await self._collect(argv, env, tail=True))

    async def open_process(self, argv: list[str], env: dict[str, str]) -> RuntimeProcess:
        try:
            exec_id = await self._begin(argv, env, open_stdin=True)
        except process.Ended as e:
            raise SandboxError(str(e)) from e
        live = process.ClocheProcess(*self._up(), exec_id)
        await live.begin()
        self._live.add(live)
        return live

    async def run_background(self, argv: list[str], env: dict[str, str], log: str) -> None:
        try:
            await self._begin(["sh", "-c", _TO_LOG, "sh", log, *argv], env)
        except process.Ended as e:
            raise SandboxError(str(e)) from e

    # -- files

    def _absolute(self, path: str) -> str:
        return str(PurePosixPath(self.config.directory) / path)

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        api, sandbox = self._up()
        target = self._absolute(path)
        if self.user is not None:
            argv = ["cat", "--", target] if max_bytes is None else ["head", "-c", str(max_bytes), "--", target]
            code, data, stderr = await self._collect(argv, {})
            if code:
                raise SandboxError(f"read {path!r}: {stderr[-500:].decode(errors='replace').strip()}")
            return data
        query = {"path": target}
        if max_bytes is not None:
            query["length"] = str(max_bytes)
        try:
            return await api.call("GET", f"/v1/sandboxes/{sandbox}/files", query=query)
        except ApiError as e:
            raise SandboxError(f"read {path!r}: {e}") from e

    async def write(self, path: str, data: bytes) -> None:
        api, sandbox = self._up()
        target = self._absolute(path)
        parent = str(PurePosixPath(target).parent)
        if self.user is not None:
            for argv, stdin in (
                (["mkdir", "-p", "--", parent], None),
                (["tee", "--", target], data),
            ):
                code, _, stderr = await self._collect(argv, {}, stdin=stdin)
                if code:
                    raise SandboxError(f"write {path!r}: {stderr[-500:].decode(errors='replace').strip()}")
            return
        files = f"/v1/sandboxes/{sandbox}/files"
        try:
            try:
                await api.call("PUT", files, query={"path": target}, data=data)
            except ApiError as e:
                if e.code != "not_found":
                    raise
                await api.call("POST", f"{files}/mkdir", query={"path": parent})
                await api.call("PUT", files, query={"path": target}, data=data)
        except ApiError as e:
            raise SandboxError(f"write {path!r}: {e}") from e


def _result(ended: tuple[int, bytes, bytes]) -> ProgramResult:
    code, stdout, stderr = ended
    return ProgramResult(code, stdout.decode(errors="replace"), stderr.decode(errors="replace"))


async def _made(hold: aiohttp.ClientWebSocketResponse) -> str:
    """The id of the sandbox, when it has been made."""
    async for message in hold:
        if message.type is not aiohttp.WSMsgType.TEXT:
            continue
        told = json.loads(message.data)
        if "error" in told:
            raise ApiError.of(told)
        if "sandbox" in told:
            return str(told["sandbox"]["id"])
    raise ApiError("unavailable", "the daemon left while it made a sandbox", retryable=True)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
