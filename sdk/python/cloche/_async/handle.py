"""One sandbox."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast

from cloche import _address
from cloche._async import primitives
from cloche._async.code import AsyncCodeContexts
from cloche._async.endpoints import AsyncEndpoints
from cloche._async.files import AsyncFiles
from cloche._async.process import AsyncProcess, follow, kill
from cloche._async.transport import AsyncTransport
from cloche.errors import ClocheError, InvalidRequest, NotFound, invalid, of_body
from cloche.spec import Chunk, ExecResult, command, options, to_ms, to_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from cloche import wire
    from cloche._forward import AsyncForward
    from cloche.spec import CodeOptions, CodeResult, ExecOptions


class AsyncSandboxHandle:
    """One sandbox, as it was found or made. It goes on without this object, unless that is used in a
    ``with``, whose end removes it with all that it holds.

    All methods raise `cloche.SandboxGone` when it has ended, `cloche.PolicyDenied` when the operator's
    rules say no, and `cloche.SandboxUnavailable` when there is no daemon.
    """

    def __init__(self, transport: AsyncTransport, info: wire.Sandbox) -> None:
        self._t = transport
        self.info = info
        """What was last heard of it: state, image, engine, tier, limits and what policy made of the request."""
        self.files = AsyncFiles(transport, self.id, info["cwd"])
        self.endpoints = AsyncEndpoints(transport, self.id)
        self.code = AsyncCodeContexts(transport, self.id)

    @property
    def id(self) -> str:
        """Names it for good."""
        return self.info["id"]

    @property
    def name(self) -> str:
        """Unique among the caller's live sandboxes."""
        return self.info["name"]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.info['state']}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """The daemon's address and the sandbox's identity, so that another process can continue with it.
        There, `info` has no more than that until `refresh`, and the token is ``CLOCHE_TOKEN``."""
        named = {k: v for k, v in self.info.items() if k in ("id", "name", "state", "cwd")}
        return type(self), (self._t, named)

    def _path(self, *rest: str) -> str:
        return _address.sandbox_path(self.id, *rest)

    def forward(self, port: int, *, local_port: int = 0) -> AsyncForward:
        """A port of 127.0.0.1 of this machine that leads to one inside, whatever the sandbox's network is:
        ``local_port``, or one that is free. Used in a ``with``, whose end closes it, or by its `start`.
        `cloche.InvalidRequest` for a number that is no port."""
        for field, number, least in (("port", port, 1), ("local_port", local_port, 0)):
            if not least <= number <= 65535:
                raise invalid(field, f"{field} is {number}", f"a port is {least} to 65535")
        from cloche._forward import AsyncForward  # takes asyncio, which others have no need for

        return AsyncForward(self._t.daemon(), self._path("ports", str(port)), local_port)

    async def exec(
        self, cmd: str, args: Sequence[str] = (), timeout: float | None = None, **options: Unpack[ExecOptions]
    ) -> ExecResult:
        """Runs a command, by no shell, and waits for its end.

        After `timeout` seconds all that it started is killed, what it wrote so far is in the result,
        and the sandbox goes on; None is the sandbox's own bound. The start and the end of each stream
        are kept, up to `max_output_bytes`. A cancelled call leaves no command behind.
        When this process dies the command goes on, unless `cancel_with_caller` is set.
        `cloche.CommandNotStarted` if the command does not exist.
        """
        return await self._run(command(cmd, args), timeout, options)

    async def shell(
        self, script: str, timeout: float | None = None, *, shell: str = "", **options: Unpack[ExecOptions]
    ) -> ExecResult:
        """Runs a script by /bin/sh, or by what `shell` names, such as ``bash``. See `exec`."""
        what: wire.ExecRequest = {"argv": [shell, "-c", script]} if shell else {"shell": script}
        return await self._run(what, timeout, options)

    async def python(
        self, code: str, timeout: float | None = None, **options: Unpack[ExecOptions]
    ) -> ExecResult:
        """Runs a program by the image's python3. See `exec`."""
        return await self._run({"python": code}, timeout, options)

    async def run_code(
        self, code: str, *, timeout: float | None = None, **options: Unpack[CodeOptions]
    ) -> CodeResult:
        """Runs code in a context, which keeps its variables from one run to the next. See `code`."""
        return await self.code.run(code, timeout=timeout, **options)

    async def _run(self, what: wire.ExecRequest, timeout: float | None, given: ExecOptions) -> ExecResult:
        request = options(what, timeout, given)
        # With an id that the client chose, the request can be repeated and its program ended.
        exec_id = request.setdefault("exec_id", f"py-{os.urandom(16).hex()}")
        try:
            # One that ends with its caller has ended with the connection.
            again = not request.get("cancel_with_caller")
            silence = _address.of_program(timeout, _address.ANSWER_SECONDS)
            answer = await self._t.json("POST", self._path("exec"), request, repeat=again, silence=silence)
        except ClocheError:
            raise
        except BaseException:
            await primitives.finish(self._kill_quietly(exec_id))
            raise
        _address.same_process(answer, exec_id)
        return ExecResult.of(answer)

    async def _kill_quietly(self, exec_id: str, *, managed: bool = False) -> None:
        """Ends what a request that was given up has started, or has not started yet."""
        body: wire.SignalRequest = {"signal": "KILL", "scope": "tree"}
        path = self._path("processes", exec_id, "signal")
        if managed:
            try:
                await self._t.json("POST", path, {**body, "forestall": True}, repeat=True)
                return
            except InvalidRequest:
                pass  # an older daemon, which does not know the field
            except ClocheError:
                return
        await self._t.quietly("POST", path, body)

    async def start(
        self,
        cmd: str,
        args: Sequence[str] = (),
        timeout: float | None = None,
        *,
        process: wire.ProcessSpec | None = None,
        **given: Unpack[ExecOptions],
    ) -> AsyncProcess:
        """Starts a command and returns when it has been executed. Its output is read from the result
        as it comes. `process` holds what else a process may be: ``open_stdin``, ``tty``, ``restart``,
        ``ready``, ``on_full``, ``restore_signal``."""
        return await self._start({**(process or {}), **command(cmd, args)}, timeout, given)

    async def start_shell(
        self,
        script: str,
        timeout: float | None = None,
        *,
        process: wire.ProcessSpec | None = None,
        **given: Unpack[ExecOptions],
    ) -> AsyncProcess:
        """`start` of a script for /bin/sh."""
        return await self._start({**(process or {}), "shell": script}, timeout, given)

    async def _start(self, spec: wire.ProcessSpec, timeout: float | None, given: ExecOptions) -> AsyncProcess:
        request = options(cast("wire.ExecRequest", spec), timeout, given)
        exec_id = request.setdefault("exec_id", f"py-{os.urandom(16).hex()}")
        try:
            record = await self._t.json("POST", self._path("processes"), request, repeat=True)
        except ClocheError:
            raise
        except BaseException:
            await primitives.finish(self._kill_quietly(exec_id, managed=True))
            raise
        _address.same_process(record, exec_id)
        return AsyncProcess(self._t, self.id, record)

    async def process(self, exec_id: str) -> AsyncProcess:
        """A process that was started before, by whomever."""
        record = await self._t.json("GET", self._path("processes", exec_id), repeat=True)
        _address.same_process(record, exec_id)
        return AsyncProcess(self._t, self.id, record)

    async def processes(self) -> list[wire.Process]:
        """All that are on record, execs too, in the order of their start."""
        answer = await self._t.json("GET", self._path("processes"), repeat=True)
        return cast("list[wire.Process]", answer["processes"] or [])

    async def stats(self) -> wire.SandboxStats:
        """What it uses now. What could not be measured is missing."""
        return cast("wire.SandboxStats", await self._t.json("GET", self._path("stats"), repeat=True))

    async def kill_process(self, exec_id: str) -> None:
        """Kills a process with all that it started. One that has ended is no error."""
        await kill(self._t, self.id, exec_id)

    async def logs(
        self, tail: int = 0, *, exec_id: str = "", stream: Literal["stdout", "stderr"] | None = None
    ) -> str:
        """What its commands wrote, as far as it is kept: the last `tail` lines, all for 0. It is there
        after the sandbox was stopped, too."""
        data = bytearray()
        async for chunk in self.log_entries(tail=tail, exec_id=exec_id, stream=stream):
            data += chunk.data
        return to_text(bytes(data))

    async def log_entries(
        self,
        *,
        tail: int = 0,
        exec_id: str = "",
        stream: Literal["stdout", "stderr"] | None = None,
        follow_on: bool = False,
    ) -> AsyncGenerator[Chunk, None]:
        """The same piece by piece, with the process and stream of each; with `follow_on` it goes on
        with what is written next, until the sandbox has ended."""
        query: dict[str, str | int | bool | None] = {
            "tail": tail or None,
            "exec_id": exec_id or None,
            "stream": stream,
            "follow": follow_on,
        }
        async for chunk in follow(self._t, self._path("logs"), query, resume=False, endless=follow_on):
            yield chunk

    async def refresh(self) -> wire.Sandbox:
        """Asks what became of it."""
        self.info = await self._t.json("GET", self._path(), repeat=True)
        return self.info

    async def _act(self, verb: str, body: Any = None, *, repeat: bool = True) -> wire.Sandbox:
        self.info = await self._t.json("POST", self._path(verb), body, repeat=repeat)
        return self.info

    async def stop(self, *, grace: float | None = None) -> wire.Sandbox:
        """Ends it gracefully: TERM to all, `grace` seconds (None: ten), files flushed, then KILL.
        Its record and logs stay. One that has ended stays as it is."""
        return await self._act("stop", None if grace is None else {"grace_ms": to_ms(grace, "grace")})

    async def start_again(self) -> wire.Sandbox:
        """Starts it after its end, with its workspace and the root that its last `stop` saved. `lost`
        of the record lists what could not be kept. No effect if it runs. The error has the code
        `wrong_state` if it is paused or transient, and `denied` if today's rules refuse it."""
        return await self._act("start")

    async def kill(self) -> wire.Sandbox:
        """Ends it at once. Its record and logs are kept. No effect if it has ended."""
        return await self._act("kill")

    async def pause(self) -> wire.Sandbox:
        """Pauses its processes."""
        return await self._act("pause", repeat=False)

    async def suspend(self) -> wire.Sandbox:
        """Saves its memory and root to the daemon's disk and frees what it uses. Its connections end, and
        `resume` continues its processes, also after a reboot. No effect if it is suspended. The error has
        the code `unsupported` on engines that cannot do it, and `wrong_state` if it does not run or is
        transient."""
        return await self._act("suspend")

    async def fork(self, count: int = 1, *, names: Sequence[str] = ()) -> list[AsyncSandboxHandle]:
        """Creates `count` sandboxes, or one for each of `names`, that continue from its memory and files,
        with its processes. If it runs, it is paused for a moment, and keeps its connections.
        Each fork has a lease and a network of its own and no open ports, and the caller removes it. If one
        cannot be created, the others are removed, and its error is raised. The error has the code
        `unsupported` on engines that cannot do it, and if the forks would share what only one sandbox can
        have, such as a named workspace."""
        body = {"names": list(names)} if names else {"count": count}
        answer: wire.ForkResult = await self._t.json("POST", self._path("fork"), body)
        forks = [AsyncSandboxHandle(self._t, info) for info in answer["succeeded"]]
        for failure in answer["failed"]:
            for fork in forks:
                await fork.remove()
            raise of_body(failure["error"], 200)
        return forks

    async def resume(self) -> wire.Sandbox:
        """Resumes its processes, which were paused or suspended. The error of a suspended one has the code
        `denied` if today's rules refuse it; then it stays suspended."""
        return await self._act("resume", repeat=False)

    async def heartbeat(self) -> wire.Sandbox:
        """Renews its lease, as any use does."""
        return await self._act("heartbeat")

    async def extend(self, lifetime: float, *, exact: bool = False) -> wire.Sandbox:
        """Extends its lifetime to `lifetime` seconds from now on, up to the ceiling of its profile.

        It never shortens the lifetime, unless `exact` is set.
        """
        body: dict[str, object] = {"lifetime_ms": to_ms(lifetime, "lifetime")}
        if exact:
            body["exact"] = True
        return await self._act("extend", body)

    async def open_port(
        self, port: int, *, public: bool = False, ttl: float | None = None, keep_host: bool = False
    ) -> wire.OpenedPort:
        """Opens a port as a URL: ``access_url`` of the answer is for a browser. It is open for `ttl` seconds,
        or until the sandbox ends. A port that is open already gets another token, and the earlier one ends."""
        spec: wire.PortSpec = {"port": port}
        if public:
            spec["public"] = True
        if keep_host:
            spec["keep_host"] = True
        if ttl is not None:
            spec["ttl_ms"] = to_ms(ttl, "ttl")
        return cast("wire.OpenedPort", await self._t.json("POST", self._path("ports"), spec))

    async def open_ports(self) -> list[wire.OpenPort]:
        """The open ports, by number, without their tokens."""
        answer = await self._t.json("GET", self._path("ports"), repeat=True)
        return cast("list[wire.OpenPort]", answer["ports"] or [])

    async def close_port(self, port: int) -> None:
        """Closes an open port, and ends the connections to it."""
        await self._t.json("DELETE", self._path("ports", str(port)))

    async def egress(self) -> wire.EgressRules:
        """What may leave it now."""
        return cast("wire.EgressRules", await self._t.json("GET", self._path("egress"), repeat=True))

    async def set_egress(self, allow: Sequence[str], *, deny: Sequence[str] = ()) -> wire.EgressRules:
        """Replaces what may leave it. When this returns, no connection is left that the rules do not
        allow. It wants a sandbox with a network."""
        rules: wire.Egress = {"allow": list(allow), **({"deny": list(deny)} if deny else {})}
        body: wire.EgressPolicy = {"egress": rules}
        return cast("wire.EgressRules", await self._t.json("PUT", self._path("egress"), body, repeat=True))

    async def snapshot(self, **fields: Any) -> wire.Snapshot:
        """Keeps a copy of its files, from which others can begin; `fields` are those of the API."""
        silence = _address.WORK_SECONDS
        answer = await self._t.json("POST", self._path("snapshots"), fields, silence=silence)
        return cast("wire.Snapshot", answer)

    async def remove(self) -> wire.Sandbox:
        """Ends it at once, and removes it with all that it holds. One that is gone already is no error."""
        try:
            self.info = await self._t.json("DELETE", self._path(), repeat=True)
        except NotFound:
            self.info = {**self.info, "state": "deleted"}
        return self.info

    async def __aenter__(self) -> AsyncSandboxHandle:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await primitives.finish(self.remove())
        except ClocheError:
            if error is None:
                raise
