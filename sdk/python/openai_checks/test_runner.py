"""Whole runs of the SDK's own runner, with its own fake model."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from agents import RunConfig, Runner, RunState
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Capability, Shell
from agents.sandbox.entries import Dir, File
from agents.sandbox.manifest import Environment
from agents.testing import ScriptedModel, assistant_message, function_call

from .support import World, counted, needs_daemon, run

pytestmark = needs_daemon

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def shell(number: int, **given: Any) -> Any:
    return function_call("exec_command", given, call_id=f"c{number}")


def outputs(result: Any) -> list[str]:
    return [str(i.output) for i in result.new_items if i.type == "tool_call_output_item"]


def test_a_run_makes_and_removes_its_sandbox() -> None:
    async def test(w: World) -> None:
        model = ScriptedModel(
            [
                [shell(1, cmd="cat notes.md; echo $WHO; exit 7"), shell(2, cmd="pwd", workdir="deep")],
                [shell(3, cmd="printf '> '; read x; echo got:$x", tty=True, yield_time_ms=300)],
                [assistant_message("done")],
            ]
        )
        agent = SandboxAgent(
            name="a",
            model=model,
            default_manifest=Manifest(
                entries={"notes.md": File(content=b"the notes\n"), "deep/f": File(content=b"")},
                environment=Environment(value={"WHO": "me"}),
            ),
            capabilities=[Shell()],
        )
        config = RunConfig(
            sandbox=SandboxRunConfig(client=w.client, options=w.options()), tracing_disabled=True
        )
        result = await Runner.run(agent, "go", run_config=config)
        told = outputs(result)
        assert "the notes\nme" in told[0] and "code 7" in told[0]
        assert "/workspace/deep" in told[1]
        assert "session ID" in told[2]
        assert result.final_output == "done"
        model.assert_complete()
        assert {t.name for t in model.calls[0].tools} == {"exec_command", "write_stdin"}
        assert await w.sandboxes() == []

    run(test)


def test_a_run_as_a_user() -> None:
    async def test(w: World) -> None:
        model = ScriptedModel([[shell(1, cmd="id -un; touch f; stat -c %U f")], [assistant_message("done")]])
        agent = SandboxAgent(name="a", model=model, run_as="coder", capabilities=[Shell()])
        config = RunConfig(
            sandbox=SandboxRunConfig(client=w.client, options=w.options()), tracing_disabled=True
        )
        result = await Runner.run(agent, "go", run_config=config)
        assert "coder\ncoder" in outputs(result)[0], outputs(result)

    run(test)


def test_a_run_that_waits_for_approval_goes_on_elsewhere() -> None:
    """Its sandbox ends with the first half; the second, of a state that was text meanwhile, has its files."""

    def configured(toolset: Any) -> None:
        async def ask(_context: Any, arguments: dict[str, Any], _call: str) -> bool:
            return "second" in str(arguments)

        toolset.exec_command.needs_approval = ask

    async def test(w: World) -> None:
        model = ScriptedModel(
            [
                [shell(1, cmd="echo first > f")],
                [shell(2, cmd="echo second >> f; cat f")],
                [assistant_message("done")],
            ]
        )
        agent = SandboxAgent(name="a", model=model, capabilities=[Shell(configure_tools=configured)])
        config = RunConfig(
            sandbox=SandboxRunConfig(client=w.client, options=w.options(), snapshot=w.snapshots),
            tracing_disabled=True,
        )
        result = await Runner.run(agent, "go", run_config=config)
        assert len(result.interruptions) == 1
        text = result.to_state().to_string()
        again = await RunState.from_string(agent, text)
        for asked in again.get_interruptions():
            again.approve(asked)
        result = await Runner.run(agent, again, run_config=config)
        assert "first\nsecond" in outputs(result)[-1] and result.final_output == "done"

    run(test)


class Twenty(Capability):
    """Wants files in the workspace, as skills do."""

    type: str = "twenty"

    def process_manifest(self, manifest: Manifest) -> Manifest:
        files = Dir(children={f"f{n}": File(content=b"2") for n in range(20)})
        return manifest.model_copy(update={"entries": {**manifest.entries, "new": files}})


def test_a_run_in_a_session_that_is_there() -> None:
    """What a capability adds comes by few calls, and the session stays."""

    async def test(w: World) -> None:
        s = await w.session(Manifest(entries={"old": File(content=b"1")}))
        agent = SandboxAgent(
            name="a", model=ScriptedModel([[assistant_message("done")]]), capabilities=[Shell(), Twenty()]
        )
        config = RunConfig(sandbox=SandboxRunConfig(session=s), tracing_disabled=True)
        with counted() as calls:
            await Runner.run(agent, "go", run_config=config)
        assert len(calls) <= 3, calls
        assert (await s.exec("cat old new/*")).stdout == b"1" + b"2" * 20

    run(test)


@pytest.mark.parametrize("example", sorted(p.name for p in EXAMPLES.glob("openai_*.py")))
def test_examples(example: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [example])
    runpy.run_path(str(EXAMPLES / example), run_name="__main__")
    assert "the tests pass" in capsys.readouterr().out
