"""Sessions that are left, found again and ended."""

from __future__ import annotations

import asyncio
import io
import time
from pathlib import Path
from typing import Any

import pytest
from agents.sandbox import ExecTransportError, Manifest, User, WorkspaceArchiveReadError
from agents.sandbox.entries import Dir, File, LocalDir, LocalFile
from agents.sandbox.errors import ConfigurationError, LocalDirReadError
from agents.sandbox.types import Group, Permissions

import cloche
from cloche.openai_agents import ClocheSandboxClient

from .support import PATIENCE, World, counted, eventually, needs_daemon, run, wire

pytestmark = needs_daemon


def _id(s: Any) -> str:
    return str(s.state.sandbox_id)


async def text(s: Any, path: str) -> str:
    return (await s.read(Path(path))).read().decode()  # type: ignore[no-any-return]


def everything(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Manifest:
    """A manifest of each kind of thing, with 200 files of the host's."""
    monkeypatch.chdir(directory)
    for n in range(200):
        file = directory / "src" / f"d{n % 7}" / f"f{n}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{n}")
    (directory / "one").write_text("one")
    devs = Group(name="devs", users=[User(name="alice")])
    return Manifest(
        entries={
            "readme": File(content=b"read", permissions=Permissions(owner=6, group=4, other=0)),
            "tools": Dir(
                children={
                    "run": File(content=b"#!/bin/sh\n"),
                    "empty": Dir(),
                    "g": File(content=b"", group=devs),
                }
            ),
            "src": LocalDir(src=Path("src")),
            "deep/one": LocalFile(src=Path("one")),
            "scratch": File(content=b"fresh", ephemeral=True),
        },
        users=[User(name="alice"), User(name="bob")],
        groups=[devs],
    )


def test_a_fresh_start_takes_few_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    manifest = everything(monkeypatch, tmp_path)

    async def test(w: World) -> None:
        with counted() as calls:
            s = await w.session(manifest, kept=True)
        assert len(calls) <= 5, calls
        told = await s.exec(
            "find src -type f | wc -l; cat src/d3/f3 deep/one; echo; stat -c '%a %U %G %n' readme tools"
            " tools/run tools/g tools/empty src deep; id -Gn alice; cat readme scratch"
        )
        assert told.stdout == (
            b"200\n3one\n640 root root readme\n755 root root tools\n755 root root tools/run\n"
            b"755 root devs tools/g\n755 root root tools/empty\n755 root root src\n755 root root deep\n"
            b"alice devs\nreadfresh"
        )
        with counted() as calls:
            await s.stop()
        assert len(calls) <= 2, calls

        with counted() as calls:
            back = await w.client.resume(w.again(s))
            await back.start()
        assert len(calls) <= 4 and _id(back) == _id(s), calls

        await s.exec("echo drift > readme; echo old > scratch; echo new > new")
        with counted() as calls:
            back = await w.client.resume(w.again(s))
            await back.start()
        assert len(calls) <= 5, calls
        assert (await back.exec("cat readme scratch; test ! -e new")).stdout == b"readfresh"

        state = w.again(s)
        await back.shutdown()
        with counted() as calls:
            anew = await w.client.resume(state)
            await anew.start()
        assert len(calls) <= 4 and _id(anew) != _id(s), calls
        assert (await anew.exec("cat readme scratch; id -Gn alice")).stdout == b"readfreshalice devs\n"

    run(test)


def test_a_manifest_over_what_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    manifest = everything(monkeypatch, tmp_path)

    async def test(w: World) -> None:
        s = await w.session(manifest)
        await s.exec("chmod 700 deep; echo mine > mine; echo x >> src/d0/f0")
        with counted() as calls:
            await s.apply_manifest()
        assert len(calls) <= 3, calls
        told = await s.exec("stat -c %a deep; cat mine src/d0/f0; grep -c '^alice:' /etc/passwd")
        assert told.stdout == b"700\nmine\n01\n"

    run(test)


def test_a_link_among_the_hosts_files_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "link").symlink_to("/etc/passwd")

    async def test(w: World) -> None:
        s = await w.session(Manifest(entries={"src": LocalDir(src=Path("src"))}), started=False)
        with pytest.raises(LocalDirReadError):
            await s.start()

    run(test)


def test_users_that_the_image_has() -> None:
    async def test(w: World) -> None:
        users = [User(name="root"), User(name="daemon"), User(name="alice")]
        groups = [Group(name="adm", users=users), Group(name="alice", users=[])]
        s = await w.session(Manifest(users=users, groups=groups))
        told = await s.exec("id -un; grep -c '^daemon:' /etc/passwd; id -Gn daemon; id -gn alice; id -Gn alice")
        lines = told.stdout.decode().splitlines()
        assert lines[:2] == ["root", "1"] and "adm" in lines[2].split()
        assert lines[3] == "alice" and lines[4].split() == ["alice", "adm"]
        await s.provision_manifest_accounts()
        assert (await s.exec("grep -c alice /etc/group")).stdout == b"2\n"

    run(test)


def test_another_root() -> None:
    async def test(w: World) -> None:
        s = await w.session(Manifest(root="/srv/my project/", entries={"f": File(content=b"x")}), kept=True)
        assert (await s.exec("pwd; cat f")).stdout == b"/srv/my project\nx"
        assert await text(s, "/srv/my project/f") == "x"
        await s.aclose()
        back = await w.client.resume(w.again(s))
        await back.start()
        assert (await back.exec("pwd; cat f")).stdout == b"/srv/my project\nx"

    run(test)


def test_review_finding_resume_reattaches_first() -> None:
    """The sandbox of the state is found again with all that is in it, also by another client."""

    async def test(w: World) -> None:
        s = await w.session(Manifest(entries={"f": File(content=b"first")}))
        await s.exec("echo changed > f; touch /outside; sleep 1000 >/dev/null 2>&1 &")
        async with ClocheSandboxClient() as other:
            state = w.again(s)
            back = await other.resume(state)
            await back.start()
            assert await w.sandboxes() == [_id(s)] == [_id(back)]
            assert await text(back, "f") == "changed\n"
            assert (await back.exec("test -e /outside && pgrep -f 'sleep 1000'")).ok()
            assert state.session_id == s.state.session_id
            await other.delete(back)
        assert await w.sandboxes() == []

    run(test)


def test_only_what_is_gone_is_made_again() -> None:
    async def test(w: World) -> None:
        manifest = Manifest(entries={"f": File(content=b"first")})
        s = await w.session(manifest, env={"A": "1"}, memory_mib=300, exposed_ports=(80,))
        state = w.again(s)
        await w.api.remove(_id(s))
        back = await w.client.resume(state)
        assert state.workspace_root_ready is False and [_id(back)] == await w.sandboxes() != [_id(s)]
        await back.start()
        assert await text(back, "f") == "first"
        assert (await back.exec("echo $A")).stdout == b"1\n"
        info = (await w.api.get(_id(back))).info
        assert info["limits"]["memory_bytes"] == 300 << 20 and back.state.exposed_ports == (80,)

    run(test)


def test_a_transport_error_on_resume_never_makes_another() -> None:
    async def test(w: World) -> None:
        async with wire() as line, ClocheSandboxClient(line.host) as client:
            s = await client.create(options=w.options())
            state = w.client.deserialize_session_state(client.serialize_session_state(s.state))
            await line.cut()
            before = state.model_dump(mode="json")
            with pytest.raises(cloche.SandboxUnavailable):
                await client.resume(state)
            assert state.model_dump(mode="json") == before
            if w.api.host.startswith("tcp"):
                with pytest.raises(cloche.Unauthenticated):
                    await ClocheSandboxClient(w.api.host, "wrong" * 8).resume(state)
            assert await w.sandboxes() == [_id(s)]
            await line.connect()
            assert _id(await client.resume(state)) == _id(s)

    run(test)


def test_a_state_of_another_daemon_makes_nothing() -> None:
    async def test(w: World) -> None:
        s = await w.session()
        state = w.again(s).model_copy(update={"host": "tcp://127.0.0.1:1"})
        assert _id(await w.client.resume(state)) == _id(s)  # it is the same one, by another name
        await w.client.delete(s)
        with pytest.raises(ConfigurationError):
            await w.client.resume(state)
        assert await w.sandboxes() == []

    run(test)


def test_work_of_one_that_was_stopped_is_rescued() -> None:
    async def test(w: World) -> None:
        manifest = Manifest(entries={"f": File(content=b"first")}, users=[User(name="alice")])
        s = await w.session(manifest)
        await s.exec("echo changed > f; echo more > more")
        await (await w.api.get(_id(s))).stop()
        with pytest.raises(ExecTransportError) as e:
            await s.exec("true")
        assert e.value.context["reason"] == "sandbox_not_found" and e.value.retryable is False
        back = await w.client.resume(w.again(s))
        await back.start()
        assert [_id(back)] == await w.sandboxes() != [_id(s)]
        assert (await back.exec("cat f more; id -un", user="alice")).stdout == b"changed\nmore\nalice\n"
        kept = await w.api.request("GET", "/v1/snapshots")
        assert not [x for x in kept["snapshots"] or [] if x["sandbox"] == _id(s)]

    run(test)


def test_pause_on_exit() -> None:
    async def test(w: World) -> None:
        s = await w.session(pause_on_exit=True)
        await s.exec("touch here /there")
        await s.shutdown()
        await w.client.delete(s)
        assert not await s.running()
        assert (await w.api.get(_id(s))).info["state"] in ("paused", "suspended")
        back = await w.client.resume(w.again(s))
        await back.start()
        assert _id(back) == _id(s) and (await back.exec("test -e here && test -e /there")).ok()

    run(test)


def test_running_never_raises() -> None:
    async def test(w: World) -> None:
        async with wire() as line, ClocheSandboxClient(line.host) as client:
            s = await client.create(options=w.options())
            assert await s.running()
            await line.cut()
            assert await s.running() is False  # no daemon
            await line.connect()
            assert await s.running()
            found = await w.api.get(_id(s))
            await found.stop()
            assert await s.running() is False  # stopped
            await found.remove()
            assert await s.running() is False  # gone
        assert await s.running() is False  # by a client that was closed

    run(test)


def test_shutdown_then_delete_twice() -> None:
    async def test(w: World) -> None:
        s = await w.session(kept=True)
        await s.stop()
        await s.stop()
        assert await s.running()
        await s.shutdown()
        await s.shutdown()
        assert await w.client.delete(s) is s
        assert await w.client.delete(s) is s
        assert await w.sandboxes() == []
        with pytest.raises(ExecTransportError):
            await s.exec("true")
        with pytest.raises(WorkspaceArchiveReadError) as e:
            await s.read(Path("f"))
        assert e.value.context["reason"] == "sandbox_not_found"

    run(test)


def test_one_that_expires_between_calls() -> None:
    async def test(w: World) -> None:
        s = await w.session(lifetime=2.0)

        async def ended() -> bool:
            return (await w.api.get(_id(s))).info["state"] == "stopped"

        await eventually(ended)
        for refused in (s.exec, s.pty_exec_start):
            with pytest.raises(ExecTransportError) as e:
                await refused("true")
            assert e.value.context["terminal_reason"] == "ttl", e.value.context

    run(test)


def test_no_daemon_and_a_wrong_token() -> None:
    async def test(w: World) -> None:
        with pytest.raises(cloche.SandboxUnavailable):
            await ClocheSandboxClient("unix:///nonexistent/cloche.sock").create(options=w.options())
        if w.api.host.startswith("tcp"):
            with pytest.raises(cloche.Unauthenticated):
                await ClocheSandboxClient(w.api.host, "wrong" * 8).create(options=w.options())
        with pytest.raises(cloche.ClocheError):
            await w.client.create(options=w.options(image="no such image"))
        assert await w.sandboxes() == []

    run(test)


def test_a_network_that_breaks() -> None:
    """What was sent once runs once; a terminal goes on where it was; a download that breaks off is an error."""

    async def test(w: World) -> None:
        async with wire() as line, ClocheSandboxClient(line.host) as client:
            s = await client.create(options=w.options())
            await s.start()
            u = await s.pty_exec_start(
                "echo one; until test -e go; do sleep 0.1; done; echo two", yield_time_s=0.25
            )
            command = asyncio.ensure_future(
                s.exec("echo ran >> ran; until test -e go; do sleep 0.1; done; echo end")
            )
            other = await w.api.get(_id(s))

            async def began() -> bool:
                return await other.files.exists("ran")

            await eventually(began)
            line.snap()
            await other.files.write("go", b"")
            assert (await command).stdout == b"end\n"
            assert (await other.files.read("ran")) == b"ran\n"
            out, number = u.output, u.process_id
            end = time.monotonic() + PATIENCE
            while u.process_id is not None:
                assert time.monotonic() < end and number is not None
                u = await s.pty_write_stdin(session_id=number, chars="", yield_time_s=5)
                out += u.output
            assert out == b"one\ntwo\n" and u.exit_code == 0

            await line.cut()
            with pytest.raises(ExecTransportError) as e:
                await s.exec("true")
            assert e.value.retryable is not False
            with pytest.raises(WorkspaceArchiveReadError):
                await s.read(Path("ran"))
            await line.connect()
            assert (await s.exec("true")).ok()

    run(test)


def test_who_is_cancelled_leaves_nothing() -> None:
    async def test(w: World) -> None:
        async def one() -> None:
            s = await w.client.create(
                manifest=Manifest(entries={"f": File(content=b"x" * 100_000)}, users=[User(name="alice")]),
                snapshot=w.snapshots,
                options=w.options(exposed_ports=(80,)),
            )
            try:
                async with s:
                    await s.write(Path("g"), io.BytesIO(b"x" * (5 << 20)))
                    await s.pty_exec_start("sleep 1000", tty=True, yield_time_s=0.25)
                    await s.resolve_exposed_port(80)
                    await s.persist_workspace()
                    await s.exec("sleep 1000")
            finally:
                await w.client.delete(s)

        before = asyncio.all_tasks()
        for after in (0, 0.003, 0.02, 0.1, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1.2, 2.0):
            task = asyncio.ensure_future(one())
            await asyncio.sleep(after)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await w.none_left()

        async def idle() -> bool:
            return asyncio.all_tasks() <= before

        await eventually(idle)

    run(test)
