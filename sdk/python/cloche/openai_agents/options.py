"""What a sandbox is to be, and what is kept to find it again."""

from __future__ import annotations

from typing import Literal

from agents.sandbox.session import BaseSandboxClientOptions, SandboxSessionState
from pydantic import Field, field_validator, model_validator

from cloche.spec import DEFAULT_IMAGE, SandboxSpec


class ClocheSandboxClientOptions(BaseSandboxClientOptions):
    """What is asked of the daemon for each sandbox. All of it is kept in the state of the session, as readable
    text: what is secret belongs into `secrets`, which are names."""

    type: Literal["cloche"] = "cloche"
    image: str = DEFAULT_IMAGE
    """``host``, or a reference of an image; the daemon chooses where it is empty."""
    exposed_ports: tuple[int, ...] = ()
    """Ports inside that `resolve_exposed_port` is to lead to."""
    env: dict[str, str] = Field(default_factory=dict)
    """The environment of every command. The manifest's values go before these."""
    cpus: float | None = None
    memory_mib: int | None = None
    disk_mib: int | None = None
    pids: int | None = None
    egress: tuple[str, ...] | None = ()
    """Host names that may be reached. Empty is nothing at all; None is what the profile says."""
    secrets: tuple[str, ...] = ()
    """Names of secrets of the operator's."""
    user: str = ""
    """Who commands run as that name no user; the image's where it is empty."""
    profile: str = ""
    engine: str = ""
    name: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    workspace: str = ""
    """The name of a workspace that outlives the sandbox; a private one where it is empty."""
    exec_timeout: float | None = None
    """Seconds that bound a command for which the SDK names no timeout."""
    lifetime: float | None = None
    """Seconds after which the sandbox ends, whatever it does."""
    idle_timeout: float | None = None
    """Seconds without any use after which it ends."""
    pause_on_exit: bool = False
    """A shutdown suspends the sandbox to the disk instead of removing it, and a resume continues it. On engines
    that cannot save its memory it is paused."""
    workspace_persistence: Literal["tar", "snapshot"] = "tar"
    """What the SDK's snapshots hold: the files, or the name of a snapshot that the daemon keeps."""
    external_symlinks: Literal["keep", "drop", "reject"] = "keep"
    """What becomes of symlinks out of the workspace in an archive that comes in."""
    portable_archives: bool = True
    """Archives that go out have copies in place of hard links, which other backends of the SDK refuse."""
    max_output_mib: int = Field(default=16, ge=1, le=64)
    """How much of each stream of a command is kept, head and tail."""

    @field_validator("exposed_ports")
    @classmethod
    def _ports(cls, ports: tuple[int, ...]) -> tuple[int, ...]:
        for port in ports:
            if not 1 <= port <= 65535:
                raise ValueError("exposed_ports entries must be between 1 and 65535")
        return tuple(dict.fromkeys(ports))

    @model_validator(mode="after")
    def _together(self) -> ClocheSandboxClientOptions:
        if self.workspace and self.workspace_persistence == "snapshot":
            raise ValueError(
                "workspace_persistence='snapshot' needs a private workspace, and workspace names one"
            )
        return self

    def spec(self, root: str, *, labels: dict[str, str], snapshot: str = "") -> SandboxSpec:
        """The request for a sandbox whose workspace is at `root`."""
        return SandboxSpec(
            image=self.image,
            memory_mib=self.memory_mib,
            cpus=self.cpus,
            disk_mib=self.disk_mib,
            pids=self.pids,
            workspace={"path": root, **({"name": self.workspace} if self.workspace else {})},
            secrets=self.secrets,
            egress=self.egress,
            labels={**self.labels, **labels},
            env=self.env,
            user=self.user,
            cwd=root,
            profile=self.profile,
            engine=self.engine,
            name=self.name,
            lifetime=self.lifetime,
            idle_timeout=self.idle_timeout,
            snapshot=snapshot,
        )


class ClocheSandboxSessionState(SandboxSessionState):
    """What finds a session's sandbox again, or makes one like it. The daemon's token is not in it."""

    type: Literal["cloche"] = "cloche"
    host: str
    """The address of the daemon that has the sandbox."""
    sandbox_id: str
    options: ClocheSandboxClientOptions
    native_snapshot: str = ""
    """The daemon's snapshot that the SDK's snapshot names."""

    @property
    def image(self) -> str:
        """The image, for the SDK's messages."""
        return self.options.image
