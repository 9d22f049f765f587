"""What can go wrong, as exceptions. A command's non-zero exit is a result, not an exception."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ClocheError(Exception):
    """What the daemon refused or could not do. Every exception of this package is one.

    `code` is from the closed list of `cloche.wire.Code`. `hint` says what would be right, `field`
    which part of the request is wrong, `rule` which rule of the operator's refused, `errno` what the
    kernel calls what became of a file, such as ``EACCES``. `retryable` says
    that the same may succeed later, and `retry_after` after how many seconds (None: not known).
    `terminal_reason` is why the sandbox has ended that was asked, such as ``ttl``.
    `request_id` finds the request in the daemon's log.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str = "",
        field: str = "",
        rule: str = "",
        errno: str = "",
        retryable: bool = False,
        retry_after: float | None = None,
        terminal_reason: str = "",
        request_id: str = "",
    ) -> None:
        super().__init__(f"{message} ({hint})" if hint else message)
        self.code = code
        self.message = message
        self.hint = hint
        self.field = field
        self.rule = rule
        self.errno = errno
        self.retryable = retryable
        self.retry_after = retry_after
        self.terminal_reason = terminal_reason
        self.request_id = request_id

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross processes; their own way of that knows no keywords.
        return _again, (type(self), self.code, self.message, self.__dict__)


def _again(kind: type[ClocheError], code: str, message: str, state: Mapping[str, Any]) -> ClocheError:
    e = kind(code, message, hint=str(state.get("hint", "")))
    e.__dict__.update(state)
    return e


class InvalidRequest(ClocheError, ValueError):
    """The request itself is wrong; `field` says where."""


class SandboxUnavailable(ClocheError):
    """No sandbox is available: no daemon, none that this caller may use, or none with free capacity.

    Raised when a daemon is asked for something. Nothing of what was to run in a sandbox ever runs
    on this machine instead.
    """


class ConnectionBroken(SandboxUnavailable):
    """The daemon was reached, but its answer was cut off: it is not known whether the request
    was carried out."""


class DaemonSilent(ConnectionBroken):
    """The daemon has answered nothing for as long as the client waits: see `silence` of the client."""


class Unauthenticated(SandboxUnavailable):
    """The daemon does not know this caller: the token is missing, wrong, revoked or over."""


class NoCapacity(SandboxUnavailable):
    """No capacity is free now, or too many were asked for; `retry_after` says when to retry."""


class PolicyDenied(ClocheError):
    """The operator's rules say no, or what the request itself allows; `rule` is the one."""


class NotFound(ClocheError):
    """There is no such thing, or not for this caller."""


class SandboxGone(NotFound):
    """The sandbox has ended; `terminal_reason` says why, where that is known."""


class CommandNotStarted(ClocheError):
    """The command was not executed: it does not exist, or it is not a program.
    Not to be confused with a program that ran and failed, which is a result."""


class OutputLost(ClocheError):
    """Output that was asked for is no longer kept."""


_KINDS: dict[str, type[ClocheError]] = {
    "invalid_argument": InvalidRequest,
    "unauthenticated": Unauthenticated,
    "denied": PolicyDenied,
    "disabled": PolicyDenied,
    "not_found": NotFound,
    "no_capacity": NoCapacity,
    "too_many": NoCapacity,
    "command_not_found": CommandNotStarted,
    "not_executable": CommandNotStarted,
    "sandbox_lost": SandboxGone,
    "unavailable": SandboxUnavailable,
}


def of_body(body: object, status: int) -> ClocheError:
    """The error in an answer's body of JSON; of anything else, one that tells the status."""
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(code := inner.get("code"), str):
        kind: type[ClocheError] = SandboxUnavailable if status in (502, 503, 504) else ClocheError
        code = "unavailable" if kind is SandboxUnavailable else "internal"
        return kind(code, f"something that is no daemon of Cloche's answered, with status {status}")

    def text(name: str) -> str:
        value = inner.get(name, "")
        return value if isinstance(value, str) else ""

    reason, after = text("terminal_reason"), inner.get("retry_after_ms")
    kind = _KINDS.get(code, ClocheError)
    if reason and code in ("not_found", "wrong_state", "unavailable"):
        kind = SandboxGone
    return kind(
        code,
        text("message"),
        hint=text("hint"),
        field=text("field"),
        rule=text("rule"),
        errno=text("errno"),
        retryable=inner.get("retryable") is True,
        retry_after=after / 1000 if isinstance(after, (int, float)) and after > 0 else None,
        terminal_reason=reason,
        request_id=text("request_id"),
    )


def invalid(field: str, message: str, hint: str = "") -> InvalidRequest:
    """A request that is not worth sending."""
    return InvalidRequest("invalid_argument", message, hint=hint, field=field)
