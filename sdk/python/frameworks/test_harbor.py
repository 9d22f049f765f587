"""The environment of Harbor: a job by its own command line, and what its base class expects."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

import cloche
from cloche.harbor import LABEL, ClocheEnvironment

OFFLINE = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)


def ours() -> list[str]:
    with cloche.SandboxClient() as client:
        return [h.name for h in client.list() if LABEL in h.info.get("labels", {})]


def environment(tmp_path: Path, **fields: Any) -> ClocheEnvironment:
    (tmp_path / "environment").mkdir(exist_ok=True)
    fields.setdefault("network_policy", OFFLINE)
    return ClocheEnvironment(
        environment_dir=tmp_path / "environment",
        environment_name="task",
        session_id="task__1__env",
        trial_paths=TrialPaths(tmp_path / "trial"),
        task_env_config=fields.pop("config", None) or EnvironmentConfig(docker_image="python:3.11-slim"),
        **fields,
    )


def using(env: ClocheEnvironment, work: Callable[[ClocheEnvironment], Awaitable[None]]) -> None:
    async def main() -> None:
        await env.start(force_build=False)
        try:
            await work(env)
        finally:
            await env.stop(delete=True)

    asyncio.run(main())
    assert ours() == []


TASK = {
    "task.toml": """
version = "1.0"
[environment]
docker_image = "python:3.11-slim"
network_mode = "no-network"
workdir = "/work"
[agent]
timeout_sec = 120.0
[verifier]
timeout_sec = 120.0
""",
    "instruction.md": "Mend six.py, which is to print 42.\n",
    "environment/six.py": "print(6 + 7)\n",
    "solution/solve.sh": "#!/bin/bash\nsed -i 's/+/*/' six.py && uname -n > /logs/agent/where\n",
    "tests/test.sh": '#!/bin/bash\ntest "$(python3 six.py)" = 42 && echo 1 > /logs/verifier/reward.txt '
    "|| echo 0 > /logs/verifier/reward.txt\n",
}


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_a_job_by_the_command_line(agent: str, reward: float, tmp_path: Path) -> None:
    for name, text in TASK.items():
        file = tmp_path / "mend-six" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    command = [
        "run",
        "-p",
        "mend-six",
        "-a",
        agent,
        "-e",
        "cloche.harbor:ClocheEnvironment",
        "-o",
        "jobs",
        "-y",
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "harbor.cli.main", *command],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    results = [json.loads(f.read_text()) for f in tmp_path.glob("jobs/*/*/result.json")]
    assert len(results) == 1, said
    assert results[0]["exception_info"] is None, results[0]
    assert results[0]["verifier_result"]["rewards"] == {"reward": reward}, said
    where = [f.read_text() for f in tmp_path.glob("jobs/*/*/agent/where")]
    assert bool(where) == (agent == "oracle") and os.uname().nodename + "\n" not in where
    assert ours() == []


def test_commands(tmp_path: Path) -> None:
    async def work(env: ClocheEnvironment) -> None:
        done = await env.exec("echo $TASK $MINE; id -un >&2; pwd; exit 3", env={"MINE": "me"}, user="nobody")
        assert (done.stdout, done.stderr, done.return_code) == ("it me\n/work\n", "nobody\n", 3)
        assert (await env.exec("[[ a == a ]] && id -u", user=0, cwd="/")).stdout == "0\n"
        assert (await env.exec("kill -TERM $$")).return_code == 128 + 15
        with pytest.raises(RuntimeError, match="timed out"):
            await env.exec("sleep 600 & wait", timeout_sec=1)
        assert not [p for p in await env.sandbox.processes() if p["running"]]
        asleep = asyncio.create_task(env.exec("sleep 600"))
        while not [p for p in await env.sandbox.processes() if p["running"]]:
            assert not asleep.done()
        asleep.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asleep
        async with asyncio.timeout(60):  # it was killed, and its end is on record a moment later
            while [p for p in await env.sandbox.processes() if p["running"]]:
                pass
        with env.with_default_user("nobody"):
            assert (await env.exec("id -un")).stdout == "nobody\n"
        assert await env.is_dir("/work") and not await env.is_file("/work")

    config = EnvironmentConfig(docker_image="python:3.11-slim", workdir="/work", env={"TASK": "it"})
    using(environment(tmp_path, config=config), work)


def test_files_there_and_back(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    every = bytes(range(256)) * 4096
    (source / "deep" / "er" / "every.bin").write_bytes(every)
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)

    async def work(env: ClocheEnvironment) -> None:
        await env.upload_dir(source, "/tests")
        assert (await env.exec("/tests/run.sh; stat -c '%u %a' /tests/run.sh")).stdout == "ran\n0 755\n"
        await env.upload_file(source / "run.sh", "/some/where/run")
        assert (await env.exec("/some/where/run")).stdout == "ran\n"
        await env.exec("cd /tests && ln -s /etc/passwd out && ln -s run.sh in && mkfifo pipe")
        await env.download_dir("/tests", tmp_path / "back")
        back = tmp_path / "back"
        assert (back / "deep" / "er" / "every.bin").read_bytes() == every
        assert sorted(p.name for p in back.iterdir()) == ["deep", "in", "run.sh"]
        await env.download_file("/tests/deep/er/every.bin", tmp_path / "new" / "one")
        assert (tmp_path / "new" / "one").read_bytes() == every
        with pytest.raises(cloche.NotFound):
            await env.download_file("/tests/none", tmp_path / "none")

    using(environment(tmp_path), work)


def test_the_network_is_what_the_task_says(tmp_path: Path) -> None:
    listed = NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["pkg.example", "*.api.example"])

    async def rules(env: ClocheEnvironment) -> list[str]:
        return sorted((await env.sandbox.egress())["egress"].get("allow") or [])

    async def work(env: ClocheEnvironment) -> None:
        assert await rules(env) == ["*.api.example", "pkg.example"]
        await env.set_network_policy(OFFLINE)
        assert await rules(env) == []

    using(environment(tmp_path, network_policy=listed, phase_network_policies=[OFFLINE]), work)

    async def public(env: ClocheEnvironment) -> None:
        assert await rules(env) == ["*"]

    using(environment(tmp_path, network_policy=NetworkPolicy()), public)

    async def offline(env: ClocheEnvironment) -> None:
        assert env.sandbox.info["network"] == "none"

    using(environment(tmp_path), offline)
    with pytest.raises(ValueError, match="IPv4"):
        addresses = NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["192.0.2.1"])
        environment(tmp_path, network_policy=addresses)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(cloche.InvalidRequest, match="names none"):
        environment(tmp_path, config=EnvironmentConfig())
    with pytest.raises(RuntimeError, match="GPU"):
        environment(tmp_path, config=EnvironmentConfig(docker_image="a", gpus=1))
    env = environment(tmp_path, profile="no-such-profile")
    with pytest.raises(cloche.ClocheError, match="no-such-profile"):
        asyncio.run(env.start(force_build=False))
    assert ours() == []
    (tmp_path / "environment" / "docker-compose.yaml").write_text("services: {}\n")
    with pytest.raises(cloche.InvalidRequest, match="several containers"):
        environment(tmp_path)


def test_what_is_not_deleted_stays_for_a_while(tmp_path: Path) -> None:
    async def main() -> str:
        env = environment(tmp_path, idle_timeout=3600)
        await env.start(force_build=False)
        name = env.sandbox.name
        await env.stop(delete=False)
        return name

    name = asyncio.run(main())
    assert ours() == [name]
    with cloche.SandboxClient() as client:
        client.remove(name)


def test_no_daemon_ends_harbor_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLOCHE_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(SystemExit):
        ClocheEnvironment.preflight()
