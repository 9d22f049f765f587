"""What is asked for, and what comes back."""

from __future__ import annotations

import base64
import dataclasses
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from cloche.errors import ClocheError, invalid

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from cloche import wire

DEFAULT_IMAGE = ""
"""The image of a `SandboxSpec` that names none: the daemon chooses, as for the command line. That is ``host``,
the machine's own tools, which needs no registry, unless the operator's policy says otherwise."""

MIB = 1 << 20

# What Python 3.10 reads has neither Z nor nanoseconds.
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)")


@dataclass(frozen=True)
class NewFile:
    """A file that a sandbox begins with, and its permission bits."""

    content: str | bytes
    mode: int = 0o644


class SandboxFields(TypedDict, total=False):
    """The fields of `SandboxSpec` as keywords."""

    name: str
    image: str
    memory_mib: int | None
    cpus: float | None
    workspace: str | wire.Workspace | None
    secrets: Sequence[str | wire.SecretUse]
    egress: Sequence[str] | wire.Egress | None
    labels: Mapping[str, str]
    network: Literal["none", "on"] | None
    env: Mapping[str, str]
    user: str
    sudo: bool
    cwd: str
    profile: str
    engine: str
    pull: Literal["missing", "never", "always"] | None
    snapshot: str
    pids: int | None
    disk_mib: int | None
    exec_timeout: float | None
    lifetime: float | None
    idle_timeout: float | None
    transient: bool
    on_expiry: Literal["stop", "suspend"] | None
    auto_resume: bool
    persistent: bool | None
    read_only_root: bool | None
    endpoints: Sequence[wire.Endpoint]
    mounts: Sequence[wire.Mount]
    skills: Sequence[wire.SkillUse]
    files: Mapping[str, str | bytes | NewFile]
    idempotency_key: str


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """What a sandbox is to be. What is granted may be less, or be refused, by the operator's policy."""

    name: str = ""
    """1 to 63 of ``a-z 0-9 - _ .``, unique among the caller's live sandboxes; empty lets the daemon choose."""
    image: str = DEFAULT_IMAGE
    """``host``, or a reference of an image; see `DEFAULT_IMAGE` for an empty one."""
    memory_mib: int | None = 512
    """MiB of memory; None is the profile's default."""
    cpus: float | None = 1
    """Cores, 0.5 is half of one; None is the profile's default."""
    workspace: str | wire.Workspace | None = None
    """The name of a workspace that outlives the sandbox, or all that can be said of one. None is a
    private one, which ends with the sandbox."""
    secrets: Sequence[str | wire.SecretUse] = ()
    """Names of secrets of the operator's. Their values are never seen here."""
    egress: Sequence[str] | wire.Egress | None = ()
    """Host names that may be reached. Empty is nothing at all, names included; None is what the
    profile says."""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """For audit, billing and lists. They never decide anything."""
    network: Literal["none", "on"] | None = None
    """``on`` gives a network whose rules can be changed later, even where `egress` is empty."""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    user: str = ""
    """``name``, ``uid`` or ``uid:gid`` of the user inside; empty is the image's user."""
    sudo: bool = False
    """Commands of users other than root may run commands as root, by the program sudo of the image host."""
    cwd: str = ""
    profile: str = ""
    engine: str = ""
    pull: Literal["missing", "never", "always"] | None = None
    snapshot: str = ""
    pids: int | None = None
    disk_mib: int | None = None
    exec_timeout: float | None = None
    """Seconds that bound every command that names no timeout of its own."""
    lifetime: float | None = None
    """Seconds after which the sandbox ends, whatever it does."""
    idle_timeout: float | None = None
    """Seconds without any use after which it ends."""
    transient: bool = False
    """It is removed with all it holds when it ends; wants `idle_timeout`."""
    on_expiry: Literal["stop", "suspend"] | None = None
    """What the end of `idle_timeout` or `lifetime` does; None is ``stop``."""
    auto_resume: bool = False
    """Its next use resumes it when it is suspended."""
    persistent: bool | None = None
    read_only_root: bool | None = None
    endpoints: Sequence[wire.Endpoint] = ()
    mounts: Sequence[wire.Mount] = ()
    skills: Sequence[wire.SkillUse] = ()
    files: Mapping[str, str | bytes | NewFile] = dataclasses.field(default_factory=dict)
    """Absolute paths and what is written there before anything runs."""
    idempotency_key: str = ""
    """Creates with one key make one sandbox; one is made up where this is empty."""

    def to_wire(self) -> wire.SandboxSpec:
        """The body of the request."""
        out: wire.SandboxSpec = {}
        texts = (
            "name",
            "image",
            "user",
            "cwd",
            "profile",
            "engine",
            "pull",
            "snapshot",
            "idempotency_key",
            "network",
            "on_expiry",
        )
        given: dict[str, Any] = {k: getattr(self, k) for k in texts if getattr(self, k)}
        for k in ("env", "labels"):
            if getattr(self, k):
                given[k] = dict(getattr(self, k))
        for k in ("endpoints", "mounts", "skills"):
            if getattr(self, k):
                given[k] = list(getattr(self, k))
        for k in ("persistent", "read_only_root"):
            if getattr(self, k) is not None:
                given[k] = getattr(self, k)
        out.update(cast("wire.SandboxSpec", given))
        if self.transient:
            out["transient"] = True
        if self.auto_resume:
            out["auto_resume"] = True
        if self.sudo:
            out["sudo"] = True
        if self.secrets:
            out["secrets"] = [{"name": s} if isinstance(s, str) else s for s in self.secrets]
        if self.workspace is not None:
            w = self.workspace
            out["workspace"] = {"name": w} if isinstance(w, str) else w
        if self.files:
            out["files"] = [_new_file(p, c) for p, c in self.files.items()]
        if limits := self._limits():
            out["limits"] = limits
        self._ways(out)
        return out

    def _ways(self, out: wire.SandboxSpec) -> None:
        if isinstance(self.egress, str):
            raise invalid(
                "egress", "egress is a list of host names, and was one text", f"egress=[{self.egress!r}]"
            )
        if isinstance(self.egress, Mapping):
            out["egress"] = self.egress
        elif self.egress is not None and (self.egress or self.network == "on"):
            out["egress"] = {"allow": list(self.egress)}
        elif self.egress is not None:
            out["network"] = "none"

    def _limits(self) -> wire.Limits:
        out: wire.Limits = {}
        for field in ("cpus", "memory_mib", "disk_mib", "pids"):
            if (given := getattr(self, field)) is not None and not given > 0:
                hint = "give what it may have, such as cpus=0.5; None is the profile's default"
                raise invalid(field, f"{field} is {given!r}, with which nothing can run", hint)
        if self.cpus is not None:
            out["cpus"] = self.cpus
        if self.memory_mib is not None:
            out["memory_bytes"] = self.memory_mib * MIB
        if self.disk_mib is not None:
            out["disk_bytes"] = self.disk_mib * MIB
        if self.pids is not None:
            out["pids"] = self.pids
        if self.exec_timeout is not None:
            out["timeout_ms"] = to_ms(self.exec_timeout, "exec_timeout")
        if self.lifetime is not None:
            out["lifetime_ms"] = to_ms(self.lifetime, "lifetime")
        if self.idle_timeout is not None:
            out["idle_ms"] = to_ms(self.idle_timeout, "idle_timeout")
        return out


def _new_file(path: str, content: str | bytes | NewFile) -> wire.File:
    if isinstance(content, NewFile):
        return {"path": path, "content": to_bytes(content.content), "mode": content.mode}
    return {"path": path, "content": to_bytes(content)}


def spec_of(spec: SandboxSpec | None, **fields: Unpack[SandboxFields]) -> SandboxSpec:
    """`spec` with what `fields` say otherwise."""
    if unknown := fields.keys() - SandboxFields.__annotations__.keys():
        raise invalid(min(unknown), f"a SandboxSpec has no field {min(unknown)!r}")
    return dataclasses.replace(spec or SandboxSpec(), **fields)


class ExecOptions(TypedDict, total=False):
    """What a command may be told beside what it is."""

    env: Mapping[str, str]
    """Added over the sandbox's."""
    cwd: str
    """Absolute; the sandbox's when it is missing."""
    user: str
    """``name``, ``uid`` or ``uid:gid``; the sandbox's when it is missing."""
    stdin: str | bytes
    """The whole input."""
    max_output_bytes: int
    """How much of each stream is kept."""
    combined: bool
    """One pipe for both streams: the exact order, all of it as stdout."""
    wait_endpoints: Sequence[str]
    """Endpoints that must be ready before."""
    exec_id: str
    """Names it; a request that is repeated with the same id runs once."""
    cancel_with_caller: bool
    """Kill all of it when the call ends before it, also by the death of this process. Without it the
    command goes on then. Not for `start`: `cloche.InvalidRequest`."""


class CodeOptions(TypedDict, total=False):
    """What a run of code may be told beside the code."""

    context: str
    """The ID of a context; the default context of the language when it is missing."""
    language: str
    """Selects a default context; ``python`` when it is missing. Not given with `context`."""
    env: Mapping[str, str]
    """Variables for this run only."""


@dataclass(frozen=True, kw_only=True)
class CodeError:
    """An exception of the code, or a failure of its kernel."""

    name: str
    value: str
    traceback: str
    """With colours, as a terminal shows them; empty for a failure of the kernel."""


@dataclass(kw_only=True)
class CodeResult:
    """What code printed, displayed and raised."""

    stdout: str = ""
    stderr: str = ""
    results: list[Mapping[str, Any]] = dataclasses.field(default_factory=list)
    """What was displayed and the value of the last expression, each by MIME type: text is a string, a picture a
    string in base64, JSON an object."""
    value: Mapping[str, Any] | None = None
    """The value of the last expression, which is in `results` too."""
    error: CodeError | None = None
    status: str = ""
    """``ok``, ``error``, ``timeout``, ``restarted`` or ``died``."""
    execution_count: int = 0
    """The number of the run in its kernel."""
    truncated: bool = False
    """Events of the run were dropped, because there were too many bytes of them."""

    @property
    def text(self) -> str | None:
        """The value of the last expression as text."""
        return None if self.value is None else self.value.get("text/plain")

    def add(self, event: wire.CodeEvent) -> None:
        """Takes in one event."""
        kind = event["type"]
        if kind == "stdout":
            self.stdout += event.get("text", "")
        elif kind == "stderr":
            self.stderr += event.get("text", "")
        elif kind == "result":
            data = event.get("data", {})
            self.results.append(data)
            if event.get("main"):
                self.value = data
        elif kind == "error":
            self.error = CodeError(
                name=event.get("name", ""), value=event.get("value", ""), traceback=event.get("traceback", "")
            )
        elif kind == "end":
            self.status = event.get("status", "")
            self.execution_count = event.get("execution_count", 0)
            self.truncated = event.get("truncated", False)


def command(cmd: str, args: Sequence[str]) -> wire.ExecRequest:
    """A command and its arguments, each of which arrives as it is."""
    if isinstance(args, str):
        raise invalid(
            "args", "args is a list of texts, and was one text", f"args=[{args!r}], or shell() for a script"
        )
    if not args and len(words := cmd.split()) > 1 and not cmd.startswith(("/", ".")):
        raise invalid(
            "cmd",
            f"{cmd!r} is the name of one program, and has spaces",
            f"give a command and its arguments, {words[0]!r}, {words[1:]!r}, or shell({cmd!r})",
        )
    return {"argv": [cmd, *args]}


def argument_list(argv: Sequence[str]) -> wire.ExecRequest:
    """A command with its arguments as one list."""
    if isinstance(argv, str):
        raise invalid(
            "argv",
            "argv is a list of texts, and was one text",
            f"run({argv.split()!r}), or run_shell({argv!r}) for a script",
        )
    return {"argv": list(argv)}


def options(what: wire.ExecRequest, timeout: float | None, given: ExecOptions) -> wire.ExecRequest:
    """The body of the request."""
    if unknown := given.keys() - ExecOptions.__annotations__.keys():
        raise invalid(min(unknown), f"a command has no option {min(unknown)!r}")
    out: dict[str, Any] = dict(what)
    for k, v in given.items():
        if isinstance(v, (bytes, str)) and k == "stdin":
            out[k] = to_bytes(v)
        elif v or isinstance(v, int):
            out[k] = dict(v) if isinstance(v, Mapping) else list(v) if isinstance(v, (list, tuple)) else v
    if timeout is not None:
        out["timeout_ms"] = to_ms(timeout, "timeout")
    return cast("wire.ExecRequest", out)


@dataclass(frozen=True, kw_only=True)
class ExecResult:
    """What became of a command. Its failure is a result, never an exception."""

    stdout: str
    """Kept output, head and tail, as text. Invalid UTF-8 is replaced; `stdout_bytes` has it exactly."""
    stderr: str
    exit_code: int | None
    """None when a signal ended the command, or when it is not known how it ended."""
    truncated: bool = False
    """More was written than is kept; `stdout_dropped` and `stderr_dropped` say how much."""
    signal: str = ""
    """Such as ``KILL``."""
    timed_out: bool = False
    oom: bool = False
    sandbox_lost: bool = False
    reason: str = ""
    """Explains an end with neither code nor signal."""
    duration: float = 0.0
    """Seconds."""
    exec_id: str = ""
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    stdout_dropped: int = 0
    stderr_dropped: int = 0
    refusals: tuple[wire.EgressRefusal, ...] = ()
    """What was not let out of the sandbox meanwhile."""
    raw: wire.Result | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """True for an exit code that is known and 0, and for nothing else."""
        return self.exit_code == 0

    @property
    def output(self) -> str:
        """`stdout`, then `stderr`."""
        return self.stdout + self.stderr

    @property
    def interleaved(self) -> str:
        """Both in the order in which they were written."""
        rest = {"stdout": self.stdout_bytes, "stderr": self.stderr_bytes}
        out = b""
        for chunk in self.raw.get("chunks") or [] if self.raw else []:
            stream = "stderr" if chunk["stream"] == "stderr" else "stdout"
            size = max(0, chunk["len"])
            out, rest[stream] = out + rest[stream][:size], rest[stream][size:]
        return to_text(out + rest["stdout"] + rest["stderr"])

    @classmethod
    def of(cls, r: wire.Result) -> ExecResult:
        """The result in an answer."""
        out, err = from_bytes(r["stdout"]), from_bytes(r["stderr"])
        return cls(
            stdout=to_text(out),
            stderr=to_text(err),
            exit_code=r["exit_code"],
            truncated=r["truncated"],
            signal=r.get("signal", ""),
            timed_out=r.get("timed_out", False),
            oom=r.get("oom", False),
            sandbox_lost=r.get("sandbox_lost", False),
            reason=r.get("reason", ""),
            duration=r["duration_ms"] / 1000,
            exec_id=r.get("exec_id", ""),
            stdout_bytes=out,
            stderr_bytes=err,
            stdout_dropped=r["stdout_bytes"]["dropped"],
            stderr_dropped=r["stderr_bytes"]["dropped"],
            refusals=tuple(r.get("refusals") or ()),
            raw=r,
        )


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a process ended whose output is read apart."""

    exit_code: int | None
    signal: str = ""
    timed_out: bool = False
    oom: bool = False
    reason: str = ""

    @property
    def ok(self) -> bool:
        """True for an exit code that is known and 0, and for nothing else."""
        return self.exit_code == 0


@dataclass(frozen=True)
class Chunk:
    """A run of output bytes of one process, or a hole: `gap` bytes before `position`, no longer kept."""

    stream: str
    """``stdout`` or ``stderr``."""
    data: bytes
    position: int
    """Of the first byte, in both streams together."""
    gap: int = 0
    exec_id: str = ""

    @property
    def text(self) -> str:
        """`data` as text. A character that two chunks share is replaced in both."""
        return to_text(self.data)


class Access(TypedDict, total=False):
    """As whom files are used, and where."""

    user: str
    """Whose rights are used, as for a program of that user's, and whose is what is made: ``name``, ``uid``
    or ``uid:gid``. When it is missing everything is allowed that the sandbox allows."""
    within: Sequence[str]
    """Directories out of which neither a path nor a symlink on it may lead: that is a `cloche.PolicyDenied`
    whose `rule` is ``within``. None, and none in `read_within`, is everywhere."""
    read_within: Sequence[str]
    """Such directories in which nothing is changed, for which the rule is ``read_within``. Of several that
    hold a path the deepest decides."""


@dataclass(frozen=True, kw_only=True)
class FileInfo:
    """One file inside a sandbox."""

    name: str
    """The last element of the path, with surrogates for bytes that are not UTF-8: as `os.fsdecode` does."""
    type: str
    """``file``, ``dir``, ``symlink`` or ``other``."""
    size: int
    mode: int
    """Permission bits."""
    uid: int
    gid: int
    mod_time: datetime
    link_target: str = ""
    user: str = ""
    """What the image calls the user, in what `stat` and `list` tell; empty where it has no name."""
    group: str = ""

    @classmethod
    def of(cls, f: wire.FileInfo) -> FileInfo:
        """The file in an answer."""
        raw = f.get("name_bytes")
        return cls(
            name=base64.b64decode(raw).decode("utf-8", "surrogateescape") if raw else f["name"],
            type=f["type"],
            size=f["size"],
            mode=f["mode"],
            uid=f["uid"],
            gid=f["gid"],
            mod_time=to_time(f["mod_time"]),
            link_target=f.get("link_target", ""),
            user=f.get("user", ""),
            group=f.get("group", ""),
        )


def to_time(text: str) -> datetime:
    """A time of the wire, to the microsecond."""
    parts = _TIME.fullmatch(text)
    if parts is None:
        raise ClocheError("internal", f"the daemon told a time that is none: {text[:40]!r}")
    whole, fraction, zone = parts.groups()
    at = datetime.fromisoformat(whole + ("+00:00" if zone in ("Z", "z") else zone))
    return at.replace(microsecond=int(((fraction or "") + "000000")[:6]))


def to_ms(seconds: float, field: str) -> int:
    """Milliseconds, rounded up: a short time never becomes 0, which means none."""
    if not math.isfinite(seconds) or seconds < 0:
        raise invalid(field, f"{field} is {seconds!r}, and must be a number of seconds from 0 on")
    return math.ceil(seconds * 1000)


def to_bytes(data: str | bytes | bytearray | memoryview) -> wire.Bytes:
    """Any bytes as the wire has them."""
    if isinstance(data, str):
        return data
    raw = bytes(data)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def from_bytes(data: wire.Bytes) -> bytes:
    """The bytes of a field of the wire."""
    if isinstance(data, str):
        return data.encode("utf-8", "surrogatepass")
    return base64.b64decode(data["base64"])


def to_text(data: bytes) -> str:
    """Output as text for people and models."""
    return data.decode("utf-8", "replace")


def default_host() -> str:
    """``CLOCHE_HOST``, or the socket of this user's daemon."""
    return os.environ.get("CLOCHE_HOST") or f"unix://{default_home()}/cloche.sock"


def default_home() -> str:
    """Where a daemon of this user keeps its state and its socket; it may not exist."""
    if home := os.environ.get("CLOCHE_HOME"):
        return home
    if os.name == "nt":
        return os.path.join(os.environ.get("APPDATA") or os.path.expanduser("~"), "cloche").replace("\\", "/")
    if os.uname().sysname == "Darwin":
        return os.path.expanduser("~/Library/Application Support/cloche")
    if os.geteuid() == 0:
        return "/var/lib/cloche"
    state = os.environ.get("XDG_STATE_HOME", "")
    return os.path.join(state if os.path.isabs(state) else os.path.expanduser("~/.local/state"), "cloche")
