"""Options and state, which need no daemon."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from typing import Any

import pytest
from agents.sandbox import Manifest, SandboxPathGrant, User
from agents.sandbox.errors import ConfigurationError
from agents.sandbox.manifest import Environment
from agents.sandbox.session import BaseSandboxClientOptions, SandboxSessionState
from agents.sandbox.snapshot import NoopSnapshot

from cloche.openai_agents import ClocheSandboxClient, ClocheSandboxClientOptions, ClocheSandboxSessionState

FULL = ClocheSandboxClientOptions(
    image="host",
    exposed_ports=(8000, 8001),
    env={"A": "1"},
    cpus=0.5,
    memory_mib=256,
    egress=("pypi.org",),
    secrets=("token",),
    labels={"a": "b"},
    exec_timeout=1.5,
    pause_on_exit=True,
    workspace_persistence="snapshot",
)


def state(**given: Any) -> ClocheSandboxSessionState:
    fields: dict[str, Any] = {
        "snapshot": NoopSnapshot(id="x"),
        "manifest": Manifest(environment=Environment(value={"E": "v"})),
        "exposed_ports": FULL.exposed_ports,
        "host": "unix:///nowhere",
        "sandbox_id": "sb-1",
        "options": FULL,
    }
    return ClocheSandboxSessionState(**{**fields, **given})


def test_options_round_trip_through_the_registry() -> None:
    payload = json.loads(json.dumps(FULL.model_dump(mode="json")))
    assert payload["type"] == "cloche"
    again = BaseSandboxClientOptions.parse(payload)
    assert type(again) is ClocheSandboxClientOptions and again == FULL


def test_a_state_round_trips_through_the_registry() -> None:
    made = state()
    payload = json.loads(made.model_dump_json())
    assert payload["type"] == "cloche" == ClocheSandboxClient.backend_id
    again = SandboxSessionState.parse(payload)
    assert type(again) is ClocheSandboxSessionState
    assert isinstance(again.session_id, uuid.UUID) and again.session_id == made.session_id
    assert (again.sandbox_id, again.options, again.exposed_ports) == ("sb-1", FULL, (8000, 8001))
    assert again.image == "host"


def test_a_state_holds_no_token() -> None:
    token = "t0ken" * 10
    client = ClocheSandboxClient("tcp://127.0.0.1:1", token)
    assert token not in json.dumps(client.serialize_session_state(state()), default=str)
    fields = {*ClocheSandboxSessionState.model_fields, *ClocheSandboxClientOptions.model_fields}
    assert not [f for f in fields if "token" in f or "password" in f or "api_key" in f]


@pytest.mark.parametrize(
    "given",
    [
        {"exposed_ports": (0,)},
        {"exposed_ports": (65536,)},
        {"workspace_persistence": "other"},
        {"workspace": "w", "workspace_persistence": "snapshot"},
        {"max_output_mib": 0},
    ],
)
def test_options_that_are_wrong(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        ClocheSandboxClientOptions(**given)


@pytest.mark.parametrize(
    "manifest",
    [
        Manifest(root="/"),
        Manifest(root="relative"),
        Manifest(root="/a/../b"),
        Manifest(users=[User(name="a:b")]),
        Manifest(users=[User(name="")]),
        Manifest(extra_path_grants=(SandboxPathGrant(path="/data", host_path="/srv/data"),)),
    ],
)
def test_create_refuses_what_no_sandbox_can_be(manifest: Manifest) -> None:
    """Before a request to a daemon, because no daemon runs here."""

    async def test() -> None:
        client = ClocheSandboxClient("unix:///nonexistent/cloche.sock")
        with pytest.raises(ConfigurationError) as e:
            await client.create(manifest=manifest)
        assert e.value.code == "sandbox_config_invalid"

    import asyncio

    asyncio.run(test())


def test_the_client_takes_only_its_own() -> None:
    async def test(_: Any) -> None:
        client = ClocheSandboxClient("unix:///nonexistent/cloche.sock")
        with pytest.raises(TypeError):
            await client.resume(
                SandboxSessionState(type="x", snapshot=NoopSnapshot(id="x"), manifest=Manifest())
            )

    import asyncio

    asyncio.run(test(None))


def test_cloche_itself_wants_nothing_of_it() -> None:
    code = (
        "import sys\n"
        "for name in ('agents', 'openai', 'pydantic', 'websockets'): sys.modules[name] = None\n"
        "import cloche\n"
        "try:\n    import cloche.openai_agents\n"
        "except ImportError as e:\n    assert 'cloche[openai-agents]' in str(e), e\n"
        "else:\n    raise SystemExit('imported without the SDK')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
