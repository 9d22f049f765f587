"""Sandboxes of inspect_ai: with ``sandbox="cloche"`` each sample of a task has one of its own.

inspect_ai finds this module by its entry point; `ClocheConfig` says what the sandboxes are to be. They
are the sandboxes of the daemon of ``CLOCHE_HOST``, with ``CLOCHE_TOKEN``, or else of this user's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import posixpath
import shlex
import signal
import stat
from collections.abc import AsyncGenerator
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    sandboxenv,
)

import cloche
from cloche import ExecOptions, _lease
from cloche._async import primitives
from cloche._inspect_config import COMPOSE_FILES, ClocheConfig, ClocheSandbox, sandboxes_of

__all__ = ["ClocheConfig", "ClocheSandbox", "ClocheSandboxEnvironment"]

LABEL = "inspect_ai.task"
"""The label of every sandbox of a task; its value is the task's name."""

MAX_STDIN = 1 << 20
"""The longest input of a command that is sent along with it. More goes as it is to a process that is
open for it."""

MAX_OUTPUT = 64 << 20
"""The most of a stream that the daemon keeps."""


@sandboxenv(name="cloche")
class ClocheSandboxEnvironment(SandboxEnvironment):
    """One sandbox. A relative path begins in its working directory, which is ``/workspace`` where
    nothing else is said."""

    def __init__(self, client: cloche.AsyncSandboxClient, handle: cloche.AsyncSandboxHandle) -> None:
        super().__init__()
        self._client = client
        self.handle = handle
        """The sandbox itself, for what inspect_ai has no word for."""
        self._beats: asyncio.Task[None] | None = None

    # -- life

    @classmethod
    def config_files(cls) -> list[str]:
        """Names of files beside a task that describe its sandboxes."""
        return COMPOSE_FILES

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> ClocheConfig:
        """The configuration in a log."""
        out: ClocheConfig = ClocheConfig.model_validate(config)
        return out

    @classmethod
    async def task_init(cls, task_name: str, config: SandboxEnvironmentConfigType | None) -> None:
        """Finds out at the start what would fail every sample: a configuration that cannot be, and a
        daemon that does not answer."""
        sandboxes_of(config)
        async with cloche.AsyncSandboxClient():
            pass

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Makes the sandboxes of a sample. An error leaves none of them behind."""
        client = cloche.AsyncSandboxClient()
        made: dict[str, ClocheSandboxEnvironment] = {}
        try:
            for name, wanted in sandboxes_of(config).items():
                handle = await _lease.create(client, wanted.spec(), {LABEL: task_name[:200]})
                made[name] = cls(client, handle)
                made[name]._beats = asyncio.create_task(_lease.beat(handle, wanted.idle_timeout))
        except BaseException:
            await primitives.finish(_end(client, list(made.values())))
            raise
        return dict(made)

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Removes the sandboxes of a sample with all that they hold, also when it was interrupted."""
        ours = [e.as_type(cls) for e in environments.values()]
        if ours:
            await primitives.finish(_end(ours[0]._client, ours))

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """``inspect sandbox cleanup cloche [ID]``: removes what a killed eval, or one with
        ``--no-sandbox-cleanup``, left."""
        async with cloche.AsyncSandboxClient() as client:
            for handle in await client.list():
                if LABEL in handle.info.get("labels", {}) and id in (None, handle.id, handle.name):
                    await handle.remove()
                    print(f"removed {handle.name}")

    # -- commands

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Runs a command. When its time is over, all that it started is killed. Nothing is tried again:
        a timeout is the command's, never the daemon's."""
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        options: ExecOptions = {"max_output_bytes": min(limit, MAX_OUTPUT)}
        if cwd is not None:
            options["cwd"] = self._at(cwd)
        if env:
            options["env"] = env
        if user:
            options["user"] = user
        data = input.encode() if isinstance(input, str) else input
        try:
            if data is not None and len(data) > MAX_STDIN:
                done = await self._fed(cmd, data, timeout, options)
            else:
                if data is not None:
                    options["stdin"] = data
                done = await self.handle.exec(cmd[0], cmd[1:], timeout, **options)
        except cloche.CommandNotStarted as e:
            if e.code == "not_executable":
                raise PermissionError(errno.EACCES, e.message, cmd[0]) from e
            return ExecResult(False, 127, "", f"{e}\n")
        except cloche.InvalidRequest as e:
            if e.field not in ("user", "cwd"):
                raise
            # What a container manager would have said with a status of its own.
            return ExecResult(False, 126, "", f"{e}\n")
        except (cloche.SandboxGone, cloche.SandboxUnavailable) as e:
            raise SandboxUnavailableError(str(e)) from e
        if done.sandbox_lost:
            raise SandboxUnavailableError(done.reason or "the sandbox ended while the command ran")
        if done.timed_out:
            late = TimeoutError(f"Command timed out after {timeout} seconds")
            late.truncated_output = done.output  # type: ignore[attr-defined]
            raise late
        if done.truncated:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, done.stdout)
        return ExecResult(done.ok, _status(done), done.stdout, done.stderr)

    async def _fed(
        self, cmd: list[str], data: bytes, timeout: int | None, options: ExecOptions
    ) -> cloche.ExecResult:
        """A command with a long input."""
        limit = options.pop("max_output_bytes")
        out = {"stdout": bytearray(), "stderr": bytearray()}
        lost = 0
        process = await self.handle.start(
            cmd[0], cmd[1:], timeout, process={"open_stdin": True, "on_full": "block"}, **options
        )
        async with process:
            feeding = asyncio.create_task(_feed(process, data))
            try:
                async for chunk in process.output():
                    kept = out["stderr" if chunk.stream == "stderr" else "stdout"]
                    taken = chunk.data[: max(0, limit - len(kept))]
                    kept += taken
                    lost += chunk.gap + len(chunk.data) - len(taken)
                end = await process.wait()
            finally:
                feeding.cancel()
                with contextlib.suppress(asyncio.CancelledError, cloche.ClocheError):
                    await feeding
        end = end or process.exit
        return cloche.ExecResult(
            stdout=out["stdout"].decode("utf-8", "replace"),
            stderr=out["stderr"].decode("utf-8", "replace"),
            exit_code=end.exit_code,
            truncated=lost > 0,
            signal=end.signal,
            timed_out=end.timed_out,
            oom=end.oom,
            reason=end.reason,
        )

    # -- files

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Writes a file, whose directories are made. It is there whole, or as it was."""
        async with self._files(file):
            with contextlib.suppress(cloche.NotFound):
                await self._stat(file, stat.S_IWUSR)
            await self.handle.files.write(self._at(file), contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Reads a file, up to the limit of inspect_ai."""
        limit, data = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE, bytearray()
        async with self._files(file):
            await self._stat(file, stat.S_IRUSR)
            chunks = self.handle.files.read_chunks(self._at(file))
            async with contextlib.aclosing(chunks):
                async for chunk in chunks:
                    data += chunk
                    if len(data) > limit:
                        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else bytes(data)

    def _at(self, path: str) -> str:
        return posixpath.join(self.handle.info["cwd"], path)

    async def _stat(self, file: str, bit: int) -> None:
        """Says what a read or a write would not: the daemon does both, and no permission holds it back.
        A file whose own user may not is taken at its word."""
        try:
            info = await self.handle.files.stat(self._at(file))
        except cloche.InvalidRequest as e:
            if e.field != "path":
                raise
            raise NotADirectoryError(errno.ENOTDIR, "A part of the path is not a directory", file) from e
        if info.type == "dir":
            raise IsADirectoryError(errno.EISDIR, "Is a directory", file)
        if info.type == "file" and not info.mode & bit:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), file)

    @contextlib.asynccontextmanager
    async def _files(self, file: str) -> AsyncGenerator[None, None]:
        """The exceptions that inspect_ai expects of files."""
        try:
            yield
        except (cloche.SandboxGone, cloche.SandboxUnavailable) as e:
            raise SandboxUnavailableError(str(e)) from e
        except cloche.NotFound as e:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file) from e
        except cloche.InvalidRequest as e:
            if e.field != "path":
                raise
            # Such as a link to a directory.
            raise OSError(errno.EINVAL, e.message, file) from e

    # -- people

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """How a person gets in."""
        try:
            info = await self.handle.refresh()
        except cloche.ClocheError as e:
            raise ConnectionError(str(e)) from e
        if info["state"] != "running":
            raise ConnectionError(f"the sandbox {self.handle.name} is {info['state']}")
        as_user = ["--user", user] if user else []
        command = ["cloche", "exec", "-i", "-t", *as_user, self.handle.id, "--", "sh"]
        return SandboxConnection(type="cloche", command=shlex.join(command))

    def default_polling_interval(self) -> float:
        """Seconds between two looks of a service of inspect_ai into the sandbox."""
        return 0.2


async def _end(client: cloche.AsyncSandboxClient, ours: list[ClocheSandboxEnvironment]) -> None:
    for each in ours:
        if each._beats is not None:
            each._beats.cancel()
    try:
        ends = await asyncio.gather(*(e.handle.remove() for e in ours), return_exceptions=True)
    finally:
        await client.aclose()
    for end in ends:
        if isinstance(end, BaseException):
            raise end


async def _feed(process: cloche.AsyncProcess, data: bytes) -> None:
    # One that has ended takes no more, which is its own affair.
    with contextlib.suppress(cloche.ClocheError):
        await process.write(data)
        await process.close_stdin()


def _status(done: cloche.ExecResult) -> int:
    """An exit status as a shell tells it."""
    if done.exit_code is not None:
        return done.exit_code
    with contextlib.suppress(KeyError):
        return 128 + signal.Signals[f"SIG{done.signal}"]
    raise SandboxUnavailableError(done.reason or "nobody knows how the command ended")
