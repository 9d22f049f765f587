"""The package itself: what is generated is current, and little is imported."""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import timezone
from pathlib import Path

import pytest

import cloche
from cloche.errors import of_body
from cloche.spec import to_time

TOOLS = Path(__file__).resolve().parent.parent / "tools"


@pytest.mark.parametrize("tool", ["unasync.py", "wire.py"])
def test_what_is_generated_is_current(tool: str) -> None:
    if not (TOOLS.parent.parent.parent / "api").exists():
        pytest.skip("needs the whole repository: the contract is not here")
    subprocess.run([sys.executable, str(TOOLS / tool), "--check"], check=True, timeout=120)


def test_an_import_takes_no_framework() -> None:
    code = (
        "import sys, cloche; "
        "bad = {'httpx', 'asyncio', 'aiohttp', 'verifiers', 'pydantic', 'cloche.wire'} & sys.modules.keys(); "
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_all_that_is_promised_is_there() -> None:
    for name in cloche.__all__:
        assert getattr(cloche, name) is not None
    with pytest.raises(AttributeError):
        _ = cloche.nonsense


def test_empty_egress_is_no_network() -> None:
    assert cloche.SandboxSpec().to_wire()["network"] == "none"
    assert cloche.SandboxSpec(egress=["a.example"]).to_wire()["egress"] == {"allow": ["a.example"]}
    on = cloche.SandboxSpec(network="on").to_wire()
    assert on["network"] == "on" and on["egress"] == {"allow": []}
    profile = cloche.SandboxSpec(egress=None).to_wire()
    assert "network" not in profile and "egress" not in profile


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("denied", cloche.PolicyDenied),
        ("unauthenticated", cloche.SandboxUnavailable),
        ("too_many", cloche.NoCapacity),
        ("sandbox_lost", cloche.SandboxGone),
        ("command_not_found", cloche.CommandNotStarted),
        ("something_new", cloche.ClocheError),
    ],
)
def test_errors_by_code(code: str, kind: type[cloche.ClocheError]) -> None:
    e = of_body({"error": {"code": code, "message": "m", "hint": "h", "retry_after_ms": 1500}}, 500)
    assert isinstance(e, kind) and e.retry_after == 1.5 and str(e) == "m (h)"
    again = pickle.loads(pickle.dumps(e))
    assert type(again) is type(e) and (again.code, again.hint, again.retry_after) == (code, "h", 1.5)


@pytest.mark.parametrize(
    "body", [None, [], "x", {"error": None}, {"error": {"code": 5}}, {"error": {"message": "m"}}]
)
def test_errors_of_strangers(body: object) -> None:
    assert of_body(body, 500).code == "internal"
    assert isinstance(of_body(body, 502), cloche.SandboxUnavailable)


def test_only_a_known_zero_is_ok() -> None:
    assert cloche.ExecResult(stdout="", stderr="", exit_code=0).ok
    assert not cloche.ExecResult(stdout="", stderr="", exit_code=None).ok
    assert not cloche.Exit(exit_code=None).ok


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05+00:00"),
        ("2026-01-02T03:04:05.123456789Z", "2026-01-02T03:04:05.123456+00:00"),
        ("2026-01-02T03:04:05.5+02:00", "2026-01-02T01:04:05.500000+00:00"),
    ],
)
def test_times(text: str, utc: str) -> None:
    assert to_time(text).astimezone(timezone.utc).isoformat() == utc


def test_a_time_that_is_none() -> None:
    with pytest.raises(cloche.ClocheError):
        to_time("yesterday")
