"""The provider of inspect_ai: its own conformance checks, and evals by its own runner."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from inspect_ai import Task, eval_async
from inspect_ai.agent import Agent, AgentState, agent, as_solver, sandbox_agent_bridge
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import basic_agent, generate, use_tools
from inspect_ai.tool import bash
from inspect_ai.util import (
    ComposeConfig,
    OutputLimitExceededError,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
    parse_compose_yaml,
    sandbox,
)
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

import cloche
from cloche._inspect_config import sandboxes_of
from cloche.inspect_ai import LABEL, ClocheConfig, ClocheSandbox, ClocheSandboxEnvironment

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def environment() -> AsyncIterator[ClocheSandboxEnvironment]:
    made = await ClocheSandboxEnvironment.sample_init("checks", None, {})
    (env,) = made.values()
    yield env.as_type(ClocheSandboxEnvironment)
    await ClocheSandboxEnvironment.sample_cleanup("checks", None, made, False)


@pytest.fixture
async def sandbox_env(environment: ClocheSandboxEnvironment) -> ClocheSandboxEnvironment:
    return environment


async def ours() -> list[str]:
    async with cloche.AsyncSandboxClient() as client:
        return [h.name for h in await client.list() if LABEL in h.info.get("labels", {})]


def call(tool: str, **arguments: str) -> ModelOutput:
    output = ModelOutput.for_tool_call("mockllm", tool, arguments)
    output.usage = ModelUsage()  # it would be counted with a list of words that is fetched
    return output


async def test_an_eval_runs_its_tools_in_sandboxes(tmp_path: Path) -> None:
    """An agent that fixes a program: of two samples each has its own files."""
    task = Task(
        dataset=[
            Sample(input="mend it", target="42", id=i, files={"six.py": "print(6 + 7)"}) for i in range(2)
        ],
        solver=basic_agent(tools=[bash(timeout=60)]),
        scorer=includes(),
        sandbox=SandboxEnvironmentSpec("cloche", ClocheConfig(egress=())),
    )
    outputs = [
        call(
            "bash",
            command="test ! -e mended && sed -i 's/+/*/' six.py && touch mended && python3 six.py && uname -n",
        ),
        call("submit", answer="42"),
    ]
    (log,) = await eval_async(
        task, model=get_model("mockllm/model", custom_outputs=outputs * 2), log_dir=str(tmp_path), max_samples=1
    )
    assert log.status == "success", log.error
    assert log.results is not None and log.samples is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1
    for sample in log.samples:
        (said,) = [m.text for m in sample.messages if m.role == "tool" and m.function == "bash"]
        assert said.startswith("42\n"), said


ASK = """
import json, sys, urllib.request
body = {"model": "inspect", "messages": [{"role": "user", "content": "capital of France?"}]}
request = urllib.request.Request(sys.argv[1], json.dumps(body).encode(), {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""


@agent
def inside() -> Agent:
    """An agent that runs in the sandbox, and reaches only its model."""

    async def execute(state: AgentState) -> AgentState:
        async with sandbox_agent_bridge(state) as bridge:
            url = f"http://127.0.0.1:{bridge.port}/v1/chat/completions"
            done = await sandbox().exec_remote(["python3", "-c", ASK, url], stream=False)
            assert done.success, done
            state.output = ModelOutput.from_content("mockllm", done.stdout)
            return state

    return execute


async def test_an_agent_in_a_sandbox_reaches_its_model(tmp_path: Path) -> None:
    """By what inspect_ai puts into the sandbox itself, which has no network."""
    task = Task(
        dataset=[Sample(input="?", target="Paris")],
        solver=as_solver(inside()),
        scorer=includes(),
        sandbox="cloche",
    )
    answer = ModelOutput.from_content("mockllm", "Paris")
    answer.usage = ModelUsage()
    model = get_model("mockllm/model", custom_outputs=[answer])
    (log,) = await eval_async(task, model=model, log_dir=str(tmp_path))
    assert log.status == "success", log.error
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1


async def test_an_eval_leaves_nothing(environment: ClocheSandboxEnvironment) -> None:
    assert await ours() == [environment.handle.name]


async def test_a_cancelled_eval_leaves_nothing(environment: ClocheSandboxEnvironment, tmp_path: Path) -> None:
    task = Task(
        dataset=[Sample(input="wait", id=i) for i in range(2)],
        solver=basic_agent(tools=[bash()]),
        sandbox="cloche",
    )
    model = get_model("mockllm/model", custom_outputs=[call("bash", command="sleep 600")] * 2)
    running = asyncio.create_task(eval_async(task, model=model, log_dir=str(tmp_path)))
    async with cloche.AsyncSandboxClient() as client:

        async def at_work() -> int:
            made = await client.list(labels={LABEL: "task"}, states=["running"])
            ends = [p["running"] for h in made for p in await h.processes()]
            return sum(ends)

        while await at_work() < 2:
            assert not running.done(), running.result()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert await ours() == [environment.handle.name]


KILLED = """
import asyncio, os, signal
from cloche.inspect_ai import ClocheConfig, ClocheSandboxEnvironment

async def main():
    made = await ClocheSandboxEnvironment.sample_init("killed", ClocheConfig(idle_timeout=2), {})
    print(made["default"].handle.name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_a_killed_eval_leaves_nothing() -> None:
    ran = subprocess.run([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, check=False)
    assert ran.returncode == -signal.SIGKILL
    with cloche.SandboxClient() as client:
        while ran.stdout.strip() in [h.name for h in client.list()]:
            pass


async def test_a_sandbox_that_cannot_be_is_an_error_of_the_eval(tmp_path: Path) -> None:
    task = Task(
        dataset=[Sample(input="x")],
        solver=[use_tools(bash()), generate()],
        sandbox=SandboxEnvironmentSpec("cloche", ClocheConfig(profile="no-such-profile")),
    )
    (log,) = await eval_async(task, model="mockllm/model", log_dir=str(tmp_path))
    assert log.status == "error"
    assert log.error is not None and "no-such-profile" in log.error.message


async def test_named_sandboxes_are_others(environment: ClocheSandboxEnvironment) -> None:
    config = ClocheConfig(env={"WHO": "me"}, others={"victim": ClocheSandbox(env={"WHO": "it"})})
    made = await ClocheSandboxEnvironment.sample_init("two", config, {})
    try:
        assert list(made) == ["default", "victim"]
        said = [(await env.exec(["sh", "-c", "echo $WHO"])).stdout for env in made.values()]
        assert said == ["me\n", "it\n"]
    finally:
        await ClocheSandboxEnvironment.sample_cleanup("two", config, made, True)
    assert await ours() == [environment.handle.name]


async def test_a_lost_sandbox_is_said_to_be_one() -> None:
    made = await ClocheSandboxEnvironment.sample_init("lost", None, {})
    env = made["default"].as_type(ClocheSandboxEnvironment)
    await env.handle.remove()
    for work in (env.exec(["true"]), env.read_file("x"), env.write_file("x", "y")):
        with pytest.raises(SandboxUnavailableError):
            await work
    with pytest.raises(ConnectionError):
        await env.connection()
    await ClocheSandboxEnvironment.sample_cleanup("lost", None, made, False)


async def test_too_much_output_is_an_error(environment: ClocheSandboxEnvironment) -> None:
    with pytest.raises(OutputLimitExceededError):
        await environment.exec(["head", "-c", "12000000", "/dev/zero"])


async def test_a_long_input_changes_nothing_else(environment: ClocheSandboxEnvironment) -> None:
    """It takes another way than a short one."""
    long = b"x" * (17 << 20)
    with pytest.raises(OutputLimitExceededError):
        await environment.exec(["cat"], input=long)
    with pytest.raises(TimeoutError):
        await environment.exec(["sleep", "600"], input=long, timeout=1)
    early = await environment.exec(
        ["sh", "-c", "head -c 3; echo $WHO >&2; exit 3"], input=long, env={"WHO": "me"}
    )
    assert (early.returncode, early.stdout, early.stderr) == (3, "xxx", "me\n")
    assert (await environment.exec(["no-such-program"], input=long)).returncode == 127
    assert not [p for p in await environment.handle.processes() if p["running"]]


async def test_connection_is_a_command_that_works(environment: ClocheSandboxEnvironment) -> None:
    connection = await environment.connection(user="nobody")
    assert connection.command == f"cloche exec -i -t --user nobody {environment.handle.id} -- sh"


async def test_cleanup_by_hand() -> None:
    made = await ClocheSandboxEnvironment.sample_init("left", None, {})
    env = made["default"].as_type(ClocheSandboxEnvironment)
    await ClocheSandboxEnvironment.cli_cleanup(env.handle.id)
    assert env.handle.name not in await ours()
    await ClocheSandboxEnvironment.sample_cleanup("left", None, made, False)


def compose(text: str, tmp_path: Path) -> ComposeConfig:
    file = tmp_path / "compose.yaml"
    file.write_text(text)
    return parse_compose_yaml(str(file))


def test_compose_files(tmp_path: Path) -> None:
    config = compose(
        """
services:
  web: {image: "b", environment: [A=1], network_mode: bridge, x-cloche: {egress: [pkg.example], pids: 64}}
  main:
    x-default: true
    image: a
    command: tail -f /dev/null
    init: true
    network_mode: none
    working_dir: /w
    mem_limit: 1.5gb
    cpus: 0.5
    user: nobody
""",
        tmp_path,
    )
    made = sandboxes_of(config)
    assert list(made) == ["main", "web"]
    assert made["main"] == ClocheSandbox(
        image="a", cwd="/w", memory_mib=1536, cpus=0.5, user="nobody", egress=()
    )
    assert made["web"].egress == ("pkg.example",) and made["web"].pids == 64 and made["web"].env == {"A": "1"}
    assert sandboxes_of(str(tmp_path / "compose.yaml")) == made


TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

@solver
def told():
    async def solve(state, generate):
        print("told", (await sandbox().exec(["sh", "-c", "echo $WHO; pwd"])).stdout.split())
        return state
    return solve

@task
def asks():
    return Task(dataset=[Sample(input="x")], solver=told(), model="none/none")
"""


def test_the_compose_file_beside_a_task(tmp_path: Path) -> None:
    """By the command line, which finds the provider by its entry point."""
    (tmp_path / "asks.py").write_text(TASK)
    service = (
        "{image: host, command: sleep infinity, environment: [WHO=me], working_dir: /, network_mode: none}"
    )
    (tmp_path / "compose.yaml").write_text(f"services: {{default: {service}}}")
    command = [
        "inspect_ai",
        "eval",
        "asks.py",
        "--sandbox",
        "cloche",
        "--display",
        "plain",
        "--log-dir",
        "logs",
    ]
    ran = subprocess.run(
        [sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "told ['me', '/']" in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("service", "field"),
    [
        ("{build: .}", "services.default.build"),
        ("{image: a, command: nginx}", "services.default.command"),
        ("{image: a, volumes: [/:/host]}", "services.default.volumes"),
        ("{image: a, privileged: true}", "services.default.privileged"),
        ("{image: a, network_mode: host}", "services.default.network_mode"),
        ("{image: a, environment: [HOME]}", "services.default.environment"),
        ("{image: a, mem_limit: lots}", "services.default.mem_limit"),
        ("{image: a, x-cloche: {nonsense: 1}}", "services.default"),
    ],
)
def test_compose_that_would_be_something_else_is_refused(service: str, field: str, tmp_path: Path) -> None:
    config = compose(f"services: {{default: {service}}}", tmp_path)
    with pytest.raises(cloche.InvalidRequest) as refused:
        sandboxes_of(config)
    assert refused.value.field == field


def test_files_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "sandbox.yaml"
    file.write_text("image: host\nothers: {other: {image: b}}\n")
    made = sandboxes_of(str(file))
    assert [s.image for s in made.values()] == ["host", "b"]
    for name in ("Dockerfile", "x.Dockerfile"):
        with pytest.raises(cloche.InvalidRequest):
            sandboxes_of(str(tmp_path / name))


def test_a_config_survives_a_log() -> None:
    config = ClocheConfig(image="host", egress=("a.example",), others={"b": ClocheSandbox(pids=5)})
    spec = SandboxEnvironmentSpec("cloche", config)
    again = SandboxEnvironmentSpec.model_validate(spec.model_dump(mode="json"))
    assert again.config == config
