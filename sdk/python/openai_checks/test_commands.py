"""Commands, terminals and ports."""

from __future__ import annotations

import asyncio
import http.client
import io
import time
from pathlib import Path

import pytest
from agents.sandbox import ExecTimeoutError, ExecTransportError, ExposedPortUnavailableError, Manifest, User
from agents.sandbox.errors import PtySessionNotFoundError
from agents.sandbox.manifest import Environment, EnvValue

from .support import PATIENCE, World, eventually, needs_daemon, run

pytestmark = needs_daemon


def test_argv_arrives_as_it_is() -> None:
    async def test(w: World) -> None:
        s = await w.session()
        words = ["a b", "", "c\nd", "'\"`$HOME", "-n", "ü", "*"]
        got = await s.exec("printf", "%s\\0", *words, shell=False)
        assert got.stdout == b"".join(word.encode() + b"\0" for word in words) and got.exit_code == 0
        quoted = await s.exec("printf", "%s\\0", *words)
        assert quoted.stdout == got.stdout
        assert (await s.exec("echo $0; exit 3", shell=["bash", "-c"])).exit_code == 3
        assert (await s.exec("kill -9 $$")).exit_code == 137
        assert (await s.exec("nothing-of-that-name", shell=False)).exit_code == 127
        assert (await s.exec("cat", shell=False)).stdout == b""

    run(test)


def test_output_is_exact() -> None:
    async def test(w: World) -> None:
        s = await w.session()
        every = "".join(f"\\{n:03o}" for n in range(256))
        got = await s.exec(f"printf '{every}'; printf 'e\\377' >&2")
        assert got.stdout == bytes(range(256)) and got.stderr == b"e\xff"
        large = await s.exec("head -c 10000000 /dev/zero | tr '\\0' x; printf end")
        assert large.stdout == b"x" * 10_000_000 + b"end"

    run(test)


def test_a_timeout_kills_all_of_it() -> None:
    async def test(w: World) -> None:
        s = await w.session()
        with pytest.raises(ExecTimeoutError):
            await s.exec("(sleep 1000 & echo $! > child; wait)", timeout=4.0)
        pid = (await s.read(Path("child"))).read().decode().strip()
        assert not (await s.exec("kill", "-0", pid, shell=False)).ok()
        bounded = await w.session(exec_timeout=0.5)
        with pytest.raises(ExecTimeoutError):
            await bounded.exec("sleep 1000")

    run(test)


def test_users_are_the_daemons_to_become() -> None:
    async def test(w: World) -> None:
        manifest = Manifest(users=[User(name="alice"), User(name="nobody")])
        s = await w.session(manifest)
        assert (await s.exec("id -un", user="alice")).stdout == b"alice\n"
        assert (await s.exec("id", "-un", shell=False, user=User(name="nobody"))).stdout == b"nobody\n"
        assert (await s.exec("id -u")).stdout == b"0\n"
        with pytest.raises(ExecTransportError):
            await s.exec("id", user="stranger")

    run(test)


class _Fresh(EnvValue):
    """Another value at each use."""

    type: str = "fresh-of-cloche-tests"
    used: int = 0

    async def resolve(self) -> str:
        self.used += 1
        return str(self.used)


def test_review_finding_environment_reaches_every_command() -> None:
    """The options' environment and the manifest's are there in commands, terminals and after a resume, and the
    manifest's goes first."""

    async def test(w: World) -> None:
        manifest = Manifest(environment=Environment(value={"BOTH": "manifest", "TEXT": "ä"}))
        s = await w.session(manifest, env={"BOTH": "base", "BASE": "b c"})
        script = "echo $BOTH-$BASE-$TEXT"
        assert (await s.exec(script)).stdout == "manifest-b c-ä\n".encode()
        assert (await s.pty_exec_start(script)).output == "manifest-b c-ä\n".encode()
        assert (await s.pty_exec_start(script, tty=True)).output == "manifest-b c-ä\r\n".encode()

        back = await w.client.resume(w.again(s))
        await back.start()
        assert (await back.exec(script)).stdout == "manifest-b c-ä\n".encode()
        await s.shutdown()
        anew = await w.client.resume(w.again(s))
        await anew.start()
        assert (await anew.exec(script)).stdout == "manifest-b c-ä\n".encode()

    run(test)


def test_environment_is_resolved_again_each_time() -> None:
    async def test(w: World) -> None:
        s = await w.session()
        s.state.manifest.environment.value["N"] = _Fresh()
        assert [(await s.exec("echo $N")).stdout for _ in range(2)] == [b"1\n", b"2\n"]

    run(test)


def test_many_commands_at_once() -> None:
    async def test(w: World) -> None:
        s = await w.session()
        got = await asyncio.gather(*(s.exec(f"echo {n}") for n in range(20)))
        assert [r.stdout for r in got] == [f"{n}\n".encode() for n in range(20)]

    run(test)


def test_a_cancelled_command_is_no_more() -> None:
    async def test(w: World) -> None:
        s = await w.session()
        task = asyncio.ensure_future(s.exec("echo $$ > pid; exec sleep 1000"))

        async def began() -> bool:
            return (await s.exec("test -s pid")).ok()

        await eventually(began)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        async def ended() -> bool:
            return not (await s.exec("kill -0 $(cat pid)")).ok()

        await eventually(ended)

    run(test)


def test_a_terminal() -> None:
    async def test(w: World) -> None:
        s = await w.session()
        assert s.supports_pty()
        u = await s.pty_exec_start(
            "test -t 0 && stty size; read x; echo got:$x; exit 7", tty=True, yield_time_s=0.3
        )
        assert u.process_id is not None and 1000 <= u.process_id < 100_000 and u.exit_code is None
        out = u.output
        u = await s.pty_write_stdin(session_id=u.process_id, chars="hé\n", yield_time_s=20)
        out += u.output
        assert u.process_id is None and u.exit_code == 7
        assert b"24 80" in out and "got:hé".encode() in out

        u = await s.pty_exec_start("cat", tty=True, yield_time_s=0.3)
        assert u.process_id is not None
        u = await s.pty_write_stdin(session_id=u.process_id, chars="\x03", yield_time_s=20)
        assert u.process_id is None and u.exit_code == 130

    run(test)


def test_a_process_without_a_terminal() -> None:
    async def test(w: World) -> None:
        s = await w.session()
        u = await s.pty_exec_start("echo a; echo b >&2; exit 3")
        assert (u.process_id, u.exit_code, sorted(u.output.split())) == (None, 3, [b"a", b"b"])
        u = await s.pty_exec_start(
            "until test -e go; do sleep 0.1; done; printf 'last\\377'", yield_time_s=0.25
        )
        assert u.process_id is not None and u.output == b""
        with pytest.raises(RuntimeError, match=r"^stdin is not available for this process$"):
            await s.pty_write_stdin(session_id=u.process_id, chars="x")
        await s.write(Path("go"), io.BytesIO(b""))
        end = time.monotonic() + PATIENCE
        number, out = u.process_id, b""
        while u.process_id is not None:
            assert time.monotonic() < end
            u = await s.pty_write_stdin(session_id=number, chars="", yield_time_s=5)
            out += u.output
        assert u.exit_code == 0 and out == "last\ufffd".encode()
        with pytest.raises(PtySessionNotFoundError):
            await s.pty_write_stdin(session_id=number, chars="")
        missing = await s.pty_exec_start("nothing-of-that-name", shell=False)
        assert missing.exit_code == 127

    run(test)


def test_long_output_is_cut_and_counted() -> None:
    async def test(w: World) -> None:
        s = await w.session()
        u = await s.pty_exec_start("seq 100000", max_output_tokens=100, yield_time_s=30)
        assert u.original_token_count is not None and len(u.output) < 5000
        assert u.output.rstrip().endswith(b"100000")

    run(test)


def test_processes_are_pruned_and_ended() -> None:
    async def test(w: World) -> None:
        s = await w.session()
        started = await asyncio.gather(*(s.pty_exec_start("sleep 1000", yield_time_s=0.25) for _ in range(66)))
        table = s._inner._live  # type: ignore[attr-defined]
        assert len({u.process_id for u in started}) == 66 and len(table) == 64
        await s.stop()
        found = await w.api.get(w.again(s).sandbox_id)

        async def all_ended() -> bool:
            return not any(p["running"] for p in await found.processes())

        await eventually(all_ended)
        assert await s.running()

    run(test)


def test_exposed_ports() -> None:
    async def test(w: World) -> None:
        s = await w.session(exposed_ports=(8000, 8001))
        with pytest.raises(ExposedPortUnavailableError) as e:
            await s.resolve_exposed_port(9)
        assert e.value.context["reason"] == "not_configured"
        before = await s.resolve_exposed_port(8000)  # before a program listens
        assert before == await s.resolve_exposed_port(8000) != await s.resolve_exposed_port(8001)
        await s.write(Path("index.html"), io.BytesIO(b"served"))
        await s.pty_exec_start("python3 -m http.server 8000 --bind 127.0.0.1", yield_time_s=0.25)

        async def served(host: str, port: int) -> bool:
            def get() -> bytes:
                connection = http.client.HTTPConnection(host, port, timeout=PATIENCE)
                try:
                    connection.request("GET", "/")
                    return connection.getresponse().read()
                except (OSError, http.client.HTTPException):
                    return b""
                finally:
                    connection.close()

            return await asyncio.to_thread(get) == b"served"

        await eventually(lambda: served(before.host, before.port))
        back = await w.client.resume(w.again(s))
        after = await back.resolve_exposed_port(8000)
        assert await served(after.host, after.port)
        await w.client.delete(back)
        with pytest.raises(ExposedPortUnavailableError) as e:
            await s.resolve_exposed_port(8000)
        assert e.value.context["reason"] == "backend_unavailable"
        with pytest.raises(OSError):
            await asyncio.open_connection(after.host, after.port)
        await s.shutdown()

    run(test)
