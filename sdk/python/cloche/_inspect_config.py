"""What the sandboxes of a task of inspect_ai are to be: a `ClocheConfig`, or a Compose file of its."""

from __future__ import annotations

import os
from typing import Any

import yaml
from inspect_ai.util import (
    ComposeConfig,
    ComposeService,
    SandboxEnvironmentConfigType,
    is_compose_yaml,
    parse_compose_yaml,
)
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import cloche
from cloche.errors import invalid
from cloche.spec import MIB

COMPOSE_FILES = ["compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"]

_KEPT_ALIVE = ("tail", "sleep")
"""A service that only waits needs no command here: a sandbox is there by itself."""

_TAKEN = {
    "image",
    "working_dir",
    "environment",
    "user",
    "network_mode",
    "deploy",
    "mem_limit",
    "cpus",
    "pids_limit",
}
_WITHOUT_EFFECT = {"init", "tty", "stdin_open", "restart", "stop_grace_period"}


class ClocheSandbox(BaseModel):
    """What one sandbox is to be; the names are those of `cloche.SandboxSpec`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: str = cloche.DEFAULT_IMAGE
    memory_mib: int | None = 512
    cpus: float | None = 1
    pids: int | None = None
    disk_mib: int | None = None
    egress: tuple[str, ...] | None = ()
    env: dict[str, str] = Field(default_factory=dict)
    user: str = ""
    cwd: str = ""
    profile: str = ""
    engine: str = ""
    snapshot: str = ""
    secrets: tuple[str, ...] = ()
    idle_timeout: float = Field(default=600.0, gt=0)
    """Seconds for which a sandbox outlives an eval that was killed, or that has left it."""

    def __hash__(self) -> int:
        return hash(self.model_dump_json())  # inspect_ai makes keys of configurations

    def spec(self) -> cloche.SandboxSpec:
        """What is asked of the daemon."""
        given = {name: getattr(self, name) for name in ClocheSandbox.model_fields}
        return cloche.SandboxSpec(**given, transient=True)


class ClocheConfig(ClocheSandbox):
    """The default sandbox of each sample, and `others` by their names. No sandbox reaches another."""

    others: dict[str, ClocheSandbox] = Field(default_factory=dict)


def sandboxes_of(config: SandboxEnvironmentConfigType | None) -> dict[str, ClocheSandbox]:
    """The sandboxes of a sample by name, the default one first. What cannot be is an `InvalidRequest`."""
    if config is None:
        config = ClocheConfig()
    elif isinstance(config, (str, os.PathLike)):
        config = _read(str(config))
    if isinstance(config, ComposeConfig):
        return _of_compose(config)
    if not isinstance(config, ClocheConfig):
        raise invalid(
            "sandbox", f"a {type(config).__name__} describes no sandboxes of Cloche", "a ClocheConfig"
        )
    return {"default": config, **config.others}


def _read(file: str) -> ClocheConfig | ComposeConfig:
    if is_compose_yaml(file):
        compose: ComposeConfig = parse_compose_yaml(file)
        return compose
    if not file.endswith((".yaml", ".yml", ".json")):
        raise invalid(
            "sandbox",
            f"Cloche builds no images, so {file} cannot be used",
            "name an image that is built already",
        )
    with open(file, encoding="utf-8") as f:
        fields = yaml.safe_load(f)
    try:
        return ClocheConfig.model_validate(fields or {})
    except ValidationError as e:
        raise invalid("sandbox", f"{file} describes no sandbox: {e}") from e


def _of_compose(compose: ComposeConfig) -> dict[str, ClocheSandbox]:
    """The services that can be sandboxes. What would be something else here than under Docker is refused."""
    out = {name: _of_service(name, service) for name, service in compose.services.items()}
    marked = [name for name, service in compose.services.items() if service.x_default]
    first = marked[0] if marked else "default"
    if first not in out:
        raise invalid("services", "no service is called default", "or mark one with x-default: true")
    return {first: out.pop(first), **out}


def _of_service(name: str, service: ComposeService) -> ClocheSandbox:
    given = service.model_dump(exclude_none=True)
    for key, value in given.items():
        known = key in _TAKEN or key in _WITHOUT_EFFECT or key.startswith(("x-", "x_"))
        if key in ("command", "entrypoint"):
            words = value.split() if isinstance(value, str) else value
            known = not words or os.path.basename(words[0]) in _KEPT_ALIVE
        if not known:
            raise invalid(
                f"services.{name}.{key}",
                f"Cloche has no {key} of a Compose service",
                "leave it out, or use a ClocheConfig",
            )
    if "image" not in given:
        raise invalid(f"services.{name}.image", f"the service {name} names no image")
    fields: dict[str, Any] = {"image": given["image"], "env": _environment(name, given.get("environment"))}
    fields |= {ours: given[key] for key, ours in (("working_dir", "cwd"), ("user", "user")) if key in given}
    mode = given.get("network_mode", "bridge")
    if mode not in ("none", "bridge"):
        raise invalid(f"services.{name}.network_mode", f"Cloche has no network_mode {mode!r}", "none or bridge")
    # Docker's own network reaches everything; how much of that is right is the operator's to say.
    fields["egress"] = () if mode == "none" else None
    limits = given.get("deploy", {}).get("resources", {}).get("limits", {})
    if (cpus := given.get("cpus", limits.get("cpus"))) is not None:
        fields["cpus"] = cpus
    if (memory := given.get("mem_limit", limits.get("memory"))) is not None:
        fields["memory_mib"] = _mebibytes(f"services.{name}.mem_limit", memory)
    if int(given.get("pids_limit", -1)) > 0:
        fields["pids"] = int(given["pids_limit"])
    try:
        out: ClocheSandbox = ClocheSandbox.model_validate(
            fields | dict(service.extensions.get("x-cloche") or {})
        )
        return out
    except ValidationError as e:
        raise invalid(f"services.{name}", f"the service {name} describes no sandbox: {e}") from e


def _environment(name: str, given: list[str] | dict[str, str | None] | None) -> dict[str, str]:
    if isinstance(given, list):
        given = dict((k, v if eq else None) for k, eq, v in (item.partition("=") for item in given))
    out: dict[str, str] = {}
    for key, value in (given or {}).items():
        # Without a value it would be this process's own, which belongs into no log and no sandbox.
        if value is None:
            raise invalid(f"services.{name}.environment", f"{key} has no value", "write it into the file")
        out[key] = str(value)
    return out


def _mebibytes(field: str, text: str) -> int:
    number = text.strip().lower().removesuffix("b")
    unit = {"k": 1 << 10, "m": MIB, "g": 1 << 30}.get(number[-1:], 1)
    try:
        size = float(number.rstrip("kmg")) * unit
    except ValueError:
        raise invalid(field, f"{text!r} is no amount of memory", "such as 512m or 2g") from None
    return max(1, int(size // MIB))
