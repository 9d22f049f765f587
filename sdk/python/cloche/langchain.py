"""A sandbox as the backend of a deep agent of LangChain: its files, and its shell.

with cloche.local() as client, client.create(image="host") as sandbox:
    agent = create_deep_agent(model=..., backend=ClocheBackend(sandbox))
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

import cloche
from cloche._async import primitives

__all__ = ["ClocheBackend"]

LATE = 124
"""The exit code of a command whose time was over, as the program timeout has it."""


class ClocheBackend(BaseSandbox):
    """A sandbox as a deep agent sees it. Who made the sandbox removes it.

    Commands run by ``/bin/sh`` in the sandbox's working directory. `timeout` are the seconds for a
    command that names none, and 0 is the sandbox's own bound. What is read, searched and edited is so
    by a python3 of the image's, which is how `BaseSandbox` does it.
    """

    def __init__(self, sandbox: cloche.SandboxHandle, *, timeout: float = 1800) -> None:
        self.sandbox = sandbox
        """The sandbox itself, for what deepagents has no word for."""
        self._timeout = timeout

    @property
    def id(self) -> str:
        """The sandbox's."""
        return self.sandbox.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a script and waits for its end. When its time is over, it is killed with all that it
        started, and what it wrote so far is there."""
        return self._execute(command, timeout, _new_id())

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """The same. A cancelled call leaves no command behind."""
        exec_id = _new_id()
        work = asyncio.create_task(asyncio.to_thread(self._execute, command, timeout, exec_id))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await primitives.finish(self._kill(exec_id, work))
            raise

    def _execute(self, command: str, timeout: int | None, exec_id: str) -> ExecuteResponse:
        seconds = (self._timeout if timeout is None else timeout) or None
        done = self.sandbox.shell(command, seconds, combined=True, exec_id=exec_id)
        if done.timed_out:
            output = f"{done.output}\n(killed after {seconds:g} seconds)" if seconds else done.output
            return ExecuteResponse(output=output, exit_code=LATE, truncated=done.truncated)
        return ExecuteResponse(output=done.output, exit_code=_status(done), truncated=done.truncated)

    async def _kill(self, exec_id: str, work: asyncio.Task[ExecuteResponse]) -> None:
        # The thread may not have asked for the command yet.
        while not work.done():
            with contextlib.suppress(cloche.ClocheError):
                await asyncio.to_thread(self.sandbox.kill_process, exec_id)
            await asyncio.wait([work], timeout=0.1)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Writes files, whose directories are made. What one cannot be is in its own answer."""
        return [FileUploadResponse(path=path, error=self._upload(path, data)) for path, data in files]

    def _upload(self, path: str, data: bytes) -> str | None:
        error = self._refusal(path, stat.S_IWUSR)
        if error and error != "file_not_found":
            return error
        try:
            self.sandbox.files.write(path, data)
        except (cloche.InvalidRequest, cloche.NotFound) as e:
            return _reason(e)
        return None

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Reads files whole. What one cannot be is in its own answer."""
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        if error := self._refusal(path, stat.S_IRUSR):
            return FileDownloadResponse(path=path, error=error)
        try:
            return FileDownloadResponse(path=path, content=self.sandbox.files.read(path))
        except (cloche.InvalidRequest, cloche.NotFound) as e:
            return FileDownloadResponse(path=path, error=_reason(e))

    def _refusal(self, path: str, bit: int) -> str | None:
        """What the daemon would not say, which reads and writes whatever the permissions are."""
        if not path.startswith("/"):
            return "invalid_path"
        try:
            info = self.sandbox.files.stat(path)
        except (cloche.InvalidRequest, cloche.NotFound) as e:
            return _reason(e)
        if info.type == "dir":
            return "is_directory"
        return "permission_denied" if info.type == "file" and not info.mode & bit else None


def _new_id() -> str:
    return f"py-{os.urandom(16).hex()}"


def _reason(e: cloche.ClocheError) -> str:
    """A file's error in the words of deepagents. That a sandbox has ended is not a file's error."""
    if isinstance(e, cloche.SandboxGone):
        raise e
    return "file_not_found" if isinstance(e, cloche.NotFound) else "invalid_path"


def _status(done: cloche.ExecResult) -> int | None:
    """An exit code as a shell tells it; None if it is not known."""
    if done.exit_code is None:
        with contextlib.suppress(KeyError):
            return 128 + signal.Signals[f"SIG{done.signal}"]
    return done.exit_code
