"""Errors of the daemon's as the SDK has them."""

from __future__ import annotations

import signal

from cloche.errors import ClocheError, ConnectionBroken, SandboxGone, SandboxUnavailable, Unauthenticated
from cloche.spec import ExecResult, Exit

GONE_STATES = frozenset({"stopped", "lost", "failed", "deleting", "deleted", "stopping"})
"""States of a sandbox that never runs again."""


def is_gone(e: ClocheError) -> bool:
    """Whether there is definitely no such sandbox any more, which an answer that did not come never says."""
    return isinstance(e, SandboxGone) or e.code == "not_found"


def retryable(e: ClocheError) -> bool | None:
    """Whether the same is expected to succeed later. None: it may have been carried out."""
    if isinstance(e, ConnectionBroken):
        return None
    if isinstance(e, SandboxUnavailable) and not isinstance(e, Unauthenticated):
        return True
    return e.retryable


def context(e: ClocheError, **more: object) -> dict[str, object]:
    """What the SDK tells of an error beside its message."""
    out: dict[str, object] = {"backend": "cloche", "reason": e.code, "detail": str(e)}
    if e.terminal_reason or isinstance(e, SandboxGone):
        out["reason"] = "sandbox_not_found"
    for name in ("terminal_reason", "rule", "field", "request_id"):
        if value := getattr(e, name):
            out[name] = value
    return {**out, **more}


def exit_code(end: ExecResult | Exit) -> int:
    """The number that a shell would tell: 128 and the signal's where one ended the command."""
    if end.exit_code is not None:
        return end.exit_code
    if end.signal:
        try:
            return 128 + signal.Signals[f"SIG{end.signal}"].value
        except KeyError:
            return 128
    return 137 if end.oom else 1
