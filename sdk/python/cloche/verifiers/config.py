"""What a sandbox for a rollout is made of, and how verifiers' rules on networks read for Cloche."""

from __future__ import annotations

from typing import Literal, Self
from urllib.parse import urlsplit

import verifiers.v1 as vf
from pydantic import Field, model_validator
from verifiers.v1.configs.runtime import NetworkPolicyConfig, parse_network_rule
from verifiers.v1.runtimes.container import ContainerConfig

ENDPOINT_PORT = 13131
"""Where a rollout finds its services inside, unless `ClocheConfig.endpoint_port` says otherwise."""


class ClocheConfig(ContainerConfig, NetworkPolicyConfig):
    """A sandbox for each rollout.

    What verifiers knows of every container (`image`, `workdir`, `cpu` in cores, `memory` and `disk`
    in GB) means the same here, and so does its policy on networks, with one other default: `allow` is
    empty, so that a rollout reaches its model and its tools and nothing else.
    """

    type: Literal["cloche"] = "cloche"

    image: str = "host"
    """A root filesystem: ``host`` is this machine's own tools, read-only, and needs no registry; any
    other is a reference such as ``python:3.11-slim``. A task's own image goes before it."""
    allow: list[str] = Field(default_factory=list)
    """What the agent may reach beside the framework: names, ``*.`` before one, with a port or not."""
    setup_allow: list[str] = Field(default_factory=list)
    """What may be reached while task and harness are set up, before `allow` is in force: ``["*"]`` for
    harnesses that fetch their packages. With neither, the sandbox has no network at all."""
    profile: str = ""
    """A profile of the operator's; empty is the default one."""
    host: str = ""
    """The daemon; empty is ``CLOCHE_HOST``, or the one of this user. Its token is in
    ``CLOCHE_TOKEN`` alone, so that no record of a run has it."""
    endpoint_port: int = Field(ENDPOINT_PORT, ge=1, le=65535)
    """The port inside at which the services of this machine are found."""
    callback_host: str = "127.0.0.1"
    """The address of this machine at which the daemon reaches this process: another one where the
    daemon runs elsewhere."""
    callback_port: int = Field(0, ge=0, le=65535)
    """The port of it; 0 is any. A daemon whose operator lists targets of endpoints needs a fixed one,
    listed as ``http://HOST:PORT/rollout``. All rollouts of a process share it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.gpu is not None:
            raise ValueError("cloche gives sandboxes no GPU: leave `gpu` out")
        if self.workdir is not None and not self.workdir.startswith("/"):
            raise ValueError(f"workdir {self.workdir!r} must begin with /")
        for rule in (*self.allow, *self.setup_allow):
            egress_rule(rule)
        for rule in self.block:
            if rule != "*":
                egress_rule(rule)
        if self.setup_allow and self.allow and "*" not in (*self.setup_allow, *self.allow):
            # What the agent may reach, its setup may.
            self.setup_allow = list(dict.fromkeys([*self.setup_allow, *self.allow]))
        return self

    @property
    def networked(self) -> bool:
        """Whether the sandbox needs a link at all, at any time."""
        return bool(self.setup_allow or self.allow)

    @property
    def directory(self) -> str:
        """Where programs run and relative paths begin."""
        return self.workdir or "/workspace"

    def egress(self, *, setup: bool) -> tuple[set[str], set[str]]:
        """The rules of Cloche's that allow and deny, while things are set up or after that."""
        if setup:
            return {egress_rule(r) for r in self.setup_allow or self.allow}, set()
        deny: set[str] = set()
        for rule in self.block:
            if rule == "*":
                continue
            host = egress_rule(rule)
            deny.add(host)
            if not rule.startswith("*."):  # verifiers' bare names mean what is below them too
                deny.add(f"*.{host}")
        return {egress_rule(r) for r in self.allow}, deny

    def record(self) -> vf.RuntimeInfo:
        """What a trace says of the runtime. verifiers reads no kind there but its own, so a sandbox is
        on record as the container that it stands for; its id is the sandbox's."""
        from verifiers.v1.runtimes import DockerRuntimeInfo

        kept = set(vf.DockerConfig.model_fields) - {"type"}
        return DockerRuntimeInfo(**self.model_dump(include=kept))


def egress_rule(rule: str) -> str:
    """A rule of verifiers' as one of Cloche's: a name, ``*.`` before one, ``*``, or an IPv4 address,
    with a port where one is meant. A pattern that Cloche cannot hold is a ValueError, never a wider
    rule."""
    if rule == "*":
        return rule
    try:
        parsed, host, port = parse_network_rule(rule)
    except ValueError as e:
        raise ValueError(f"network rule {rule!r}: {e}") from e
    url = urlsplit(rule if "://" in rule else f"//{rule}")
    if not host or parsed.path not in ("", "/") or url.query or url.fragment or url.username:
        raise ValueError(f"network rule {rule!r} is no host, with or without a port")
    if ":" in host or any(c in host.removeprefix("*.") for c in "*?[]"):
        raise ValueError(f"network rule {rule!r}: Cloche knows names, *.NAME, * and IPv4 addresses")
    if parsed.scheme not in ("", "http", "https"):
        raise ValueError(f"network rule {rule!r}: only http and https have a scheme here")
    # A name without port is ports 80 and 443, where Cloche holds what is said to the name.
    if port is None or (parsed.scheme and port in (80, 443)):
        return str(host)
    return f"{host}:{port}"
