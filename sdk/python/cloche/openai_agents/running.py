"""The part of a session that runs commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agents.sandbox import ExecTimeoutError, ExecTransportError
from agents.sandbox.session import BaseSandboxSession
from agents.sandbox.types import ExecResult, User

import cloche
from cloche._async.client import AsyncSandboxClient
from cloche._async.handle import AsyncSandboxHandle
from cloche.errors import ClocheError, CommandNotStarted
from cloche.openai_agents import failures
from cloche.openai_agents.options import ClocheSandboxSessionState
from cloche.spec import MIB, ExecOptions

_TOOLS = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


class _As(str):
    """The name of a user at the head of a command. The SDK hands a command on as one list, and would put sudo
    into it, which few images have and the daemon does not need."""


class RunningSession(BaseSandboxSession):
    """Commands, each with the environment as it is then."""

    state: ClocheSandboxSessionState

    def __init__(
        self, state: ClocheSandboxSessionState, sandbox: AsyncSandboxHandle, api: AsyncSandboxClient
    ) -> None:
        self.state = state
        self._sandbox = sandbox
        self._api = api

    async def _environment(self) -> dict[str, str]:
        return {**self.state.options.env, **await self.state.manifest.environment.resolve()}

    def _prepare_exec_command(
        self, *command: str | Path, shell: bool | list[str], user: str | User | None
    ) -> list[str]:
        argv = super()._prepare_exec_command(*command, shell=shell, user=None)
        return [_As(name), *argv] if (name := name_of(user)) else argv

    @staticmethod
    def _split(command: Sequence[str | Path]) -> tuple[list[str], str]:
        """A command and its user."""
        user = str(command[0]) if command and isinstance(command[0], _As) else ""
        return [str(word) for word in command[1 if user else 0 :]], user

    async def _given(self, user: str) -> ExecOptions:
        given: ExecOptions = {"env": await self._environment()}
        if user:
            given["user"] = user
        return given

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        argv, user = self._split(command)
        bound = self._bound(timeout)
        try:
            given = await self._given(user)
            given["max_output_bytes"] = self.state.options.max_output_mib * MIB
            result = await self._sandbox.exec(argv[0], argv[1:], bound, **given)
        except CommandNotStarted as e:
            return not_started(e)
        except ClocheError as e:
            raise transport_error(argv, e) from e
        if result.sandbox_lost:
            raise ExecTransportError(
                command=argv,
                context={"backend": "cloche", "reason": "sandbox_not_found", "detail": result.reason},
                message="the sandbox ended while the command ran",
                retryable=False,
            )
        if result.timed_out:
            raise ExecTimeoutError(
                command=argv,
                timeout_s=timeout if timeout is not None else bound or None,
                context={"stdout_bytes": len(result.stdout_bytes), "stderr_bytes": len(result.stderr_bytes)},
            )
        return sdk_result(result)

    def _bound(self, timeout: float | None) -> float:
        """Seconds; 0 is as long as the operator lets a command run."""
        if timeout is not None:
            return max(0.001, timeout)
        return self.state.options.exec_timeout or 0.0

    async def _tool(
        self,
        script: str,
        args: Sequence[str],
        *,
        user: str = "",
        stdin: bytes = b"",
        max_output_bytes: int = MIB,
    ) -> cloche.ExecResult:
        """Runs a script of this package's, without the manifest's environment. It raises `ClocheError`."""
        given: ExecOptions = {"env": _TOOLS, "cwd": "/", "max_output_bytes": max_output_bytes}
        if user:
            given["user"] = user
        if stdin:
            given["stdin"] = stdin
        result = await self._sandbox.exec("sh", ["-c", script, "sh", *args], 0.0, **given)
        if result.sandbox_lost:
            raise cloche.SandboxGone(
                "sandbox_lost", result.reason or "the sandbox ended", terminal_reason="lost"
            )
        return result

    async def running(self) -> bool:
        """Whether commands can run in it now. It never raises."""
        try:
            return (await self._sandbox.refresh())["state"] == "running"
        except Exception:
            return False


def name_of(user: str | User | None) -> str:
    """The name of a user of the SDK's; empty for none."""
    return user.name if isinstance(user, User) else user or ""


def sdk_result(result: cloche.ExecResult) -> ExecResult:
    """The result as the SDK has it."""
    return ExecResult(
        stdout=result.stdout_bytes, stderr=result.stderr_bytes, exit_code=failures.exit_code(result)
    )


def not_started(e: CommandNotStarted) -> ExecResult:
    """A command that is not there, as a shell tells of it."""
    code = 126 if e.code == "not_executable" else 127
    return ExecResult(stdout=b"", stderr=f"{e.message}\n".encode(errors="replace"), exit_code=code)


def transport_error(argv: Sequence[str], e: ClocheError) -> ExecTransportError:
    """What kept a command from being run, or its result from coming."""
    return ExecTransportError(
        command=argv,
        context=failures.context(e),
        cause=e,
        message=str(e),
        retryable=failures.retryable(e),
    )
