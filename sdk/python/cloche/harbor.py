"""Trials of Harbor in sandboxes: ``harbor run -e cloche.harbor:ClocheEnvironment``.

They are sandboxes of the daemon of ``CLOCHE_HOST``, with ``CLOCHE_TOKEN``, or else of this user's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import IO, Any

from harbor.environments.base import BaseEnvironment, ExecResult, transfer_tar_filter
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.models.task.config import NetworkMode, NetworkPolicy
from harbor.models.trial.config import ResourceMode

import cloche
from cloche import ExecOptions, _lease
from cloche._async import primitives
from cloche.errors import invalid

__all__ = ["ClocheEnvironment"]

LABEL = "harbor.session"
"""The label of every sandbox of a trial; its value is Harbor's name for it."""

MAX_OUTPUT = 10 << 20
"""How much of each stream of a command is kept, its beginning and its end."""


class ClocheEnvironment(BaseEnvironment):
    """A sandbox for a trial.

    What ``--ek`` may say: `image` goes before the task's own; `profile` and `engine` are the daemon's
    words; `idle_timeout` are the seconds for which a sandbox outlives a Harbor that was killed, or one
    that was told to delete nothing.
    """

    def __init__(
        self,
        *args: Any,
        image: str = "",
        profile: str = "",
        engine: str = "",
        idle_timeout: float = 600,
        **kwargs: Any,
    ) -> None:
        # What _validate_definition looks at, which the base class calls.
        self._image = image
        self._profile, self._engine, self._idle_timeout = profile, engine, float(idle_timeout)
        self._client: cloche.AsyncSandboxClient | None = None
        self._handle: cloche.AsyncSandboxHandle | None = None
        self._beats: asyncio.Task[None] | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        """What Harbor calls it."""
        return "cloche"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """What it can do. An address without a port is no rule of Cloche's."""
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            dynamic_network_policy=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Cores and memory are ceilings."""
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    @classmethod
    def preflight(cls, kwargs: dict[str, Any] | None = None) -> None:
        """Ends Harbor before its first trial where there is no daemon.

        Args:
            kwargs: the user's options. Harbor gives them from 0.26 on; they are read later.
        """
        try:
            with cloche.SandboxClient():
                pass
        except cloche.ClocheError as e:
            raise SystemExit(str(e)) from e

    def _validate_definition(self) -> None:
        for name in ("docker-compose.yaml", "docker-compose.yml"):
            if (self.environment_dir / name).exists():
                raise invalid(
                    "environment", f"Cloche has no tasks of several containers, and there is a {name}"
                )
        if not (self._image or self.task_env_config.docker_image):
            raise invalid(
                "environment.docker_image",
                "Cloche builds no images for a task, and the task names none",
                "set docker_image in task.toml, or an image with --ek image=NAME",
            )

    @property
    def sandbox(self) -> cloche.AsyncSandboxHandle:
        """The sandbox itself, for what Harbor has no word for."""
        if self._handle is None:
            raise RuntimeError("the environment was not started")
        return self._handle

    async def start(self, force_build: bool) -> None:
        """Makes the sandbox. An error leaves none behind."""
        client = cloche.AsyncSandboxClient()
        try:
            labels = {LABEL: self.session_id[:200]}
            self._client, self._handle = client, await _lease.create(client, self._spec(), labels)
            self._beats = asyncio.create_task(_lease.beat(self._handle, self._idle_timeout))
            if self.task_env_config.workdir:
                await self._handle.files.mkdir(self.task_env_config.workdir)
            await self.ensure_dirs(self._mount_targets(writable_only=True))
            await self._upload_environment_dir_after_start()
        except BaseException:
            self._client = client
            await primitives.finish(self.stop(delete=True))
            raise

    def _spec(self) -> cloche.SandboxSpec:
        policies = [self._network_policy, *self._phase_network_policies]
        networked = any(p.network_mode != NetworkMode.NO_NETWORK for p in policies)
        limit = ResourceMode.LIMIT
        return cloche.SandboxSpec(
            image=self._image or self.task_env_config.docker_image,
            memory_mib=self._resource_limit_value("memory", auto_mode=limit),
            cpus=self._resource_limit_value("cpu", auto_mode=limit),
            disk_mib=self._effective_storage_mb,
            env=self._startup_env(),
            egress=_rules(self._network_policy),
            network="on" if networked else None,
            profile=self._profile,
            engine=self._engine,
            idle_timeout=self._idle_timeout,
            transient=True,
        )

    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        # When this returns, no connection is left that the new rules do not allow.
        await self.sandbox.set_egress(_rules(network_policy))

    async def stop(self, delete: bool) -> None:
        """Removes the sandbox with all that it holds; without `delete` it is left, and the daemon does
        so when it has been idle for long enough."""
        client, handle, beats = self._client, self._handle, self._beats
        self._client = self._handle = self._beats = None
        if beats is not None:
            beats.cancel()
        try:
            if handle is not None and delete:
                await handle.remove()
            elif handle is not None:
                self.logger.info(f"left the sandbox {handle.name}: cloche exec -i -t {handle.id} -- sh")
        finally:
            if client is not None:
                await client.aclose()

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Runs a script by bash, as Harbor's own environments do. When its time is over, all that it
        started is killed, and that is an error. A cancelled call leaves no command behind."""
        options: ExecOptions = {"max_output_bytes": MAX_OUTPUT}
        if where := cwd or self.task_env_config.workdir:
            options["cwd"] = where
        if merged := self._merge_env(env):
            options["env"] = merged
        if (who := self._resolve_user(user)) is not None:
            options["user"] = str(who)
        done = await self.sandbox.shell(command, timeout_sec, shell="bash", **options)
        if done.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        if done.sandbox_lost:
            raise cloche.SandboxUnavailable("sandbox_lost", done.reason or "the sandbox ended")
        if callback := self._output_callback():
            for text, stream in ((done.stdout, "stdout"), (done.stderr, "stderr")):
                if text:
                    await callback(text, stream)
        return ExecResult(stdout=done.stdout, stderr=done.stderr, return_code=_status(done))

    # -- files

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Writes a file, with the permissions that it has here."""
        with await asyncio.to_thread(open, source_path, "rb") as f:
            mode = os.fstat(f.fileno()).st_mode & 0o777
            await self.sandbox.files.write(target_path, f, mode=mode)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Puts what is in a directory into one of the sandbox's, as root's."""
        with tempfile.TemporaryFile() as archive:
            await asyncio.to_thread(_pack, Path(source_dir), archive)
            await self.sandbox.files.tar_in(target_dir, archive)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Writes a file of the sandbox's here."""
        with await asyncio.to_thread(_create, Path(target_path)) as f:
            async for data in self.sandbox.files.read_chunks(source_path):
                f.write(data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Puts what is in a directory of the sandbox's into one here. What would lead out of that is
        left out, and so is what is no file, directory or link."""
        with tempfile.TemporaryFile() as archive:
            async for data in self.sandbox.files.tar_out(source_dir):
                archive.write(data)
            archive.seek(0)
            for left_out in await asyncio.to_thread(_unpack, archive, Path(target_dir)):
                self.logger.warning(f"left out of {source_dir}: {left_out}")

    async def attach(self) -> None:
        """Makes this process a shell in the sandbox."""
        if (binary := shutil.which(os.environ.get("CLOCHE_BIN") or "cloche")) is None:
            raise RuntimeError("there is no cloche in PATH to attach with")
        os.execv(binary, [binary, "exec", "-i", "-t", self.sandbox.id, "--", "sh"])


def _rules(policy: NetworkPolicy) -> list[str]:
    """A policy of Harbor's as rules of egress. All names is as far as Cloche's reach."""
    return ["*"] if policy.network_mode == NetworkMode.PUBLIC else list(policy.allowed_hosts)


def _status(done: cloche.ExecResult) -> int:
    """An exit status as a shell tells it."""
    if done.exit_code is not None:
        return done.exit_code
    with contextlib.suppress(KeyError):
        return 128 + signal.Signals[f"SIG{done.signal}"]
    raise cloche.SandboxUnavailable("sandbox_lost", done.reason or "nobody knows how the command ended")


def _create(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("wb")


def _pack(source: Path, archive: IO[bytes]) -> None:
    def ours(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(source, arcname=".", filter=ours)
    archive.seek(0)


def _unpack(archive: IO[bytes], target: Path) -> list[str]:
    left_out: list[str] = []
    target.mkdir(parents=True, exist_ok=True)

    def held(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        try:
            kept: tarfile.TarInfo | None = transfer_tar_filter(member, path)
        except tarfile.FilterError:
            kept = None
        if kept is None:
            left_out.append(str(PurePosixPath(member.name)))
        return kept

    with tarfile.open(fileobj=archive, mode="r:") as tar:
        tar.extractall(target, filter=held)
    return left_out
