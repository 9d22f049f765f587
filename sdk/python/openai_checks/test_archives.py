"""Workspaces that are kept and brought back."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from agents.sandbox import Manifest, User, WorkspaceArchiveReadError, WorkspaceArchiveWriteError
from agents.sandbox.entries import Dir, File
from agents.sandbox.snapshot import LocalSnapshot, SnapshotBase
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, safe_extract_tarfile

from cloche.openai_agents import ClocheSandboxClient

from .support import World, counted, eventually, needs_daemon, run, wire

pytestmark = needs_daemon


def tar(*members: tuple[str, str, str]) -> io.BytesIO:
    """An archive of names, kinds and content or target."""
    out = io.BytesIO()
    kinds = {"sym": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "fifo": tarfile.FIFOTYPE, "dev": tarfile.CHRTYPE}
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, kind, what in members:
            info = tarfile.TarInfo(name)
            if kind in kinds:
                info.type, info.linkname = kinds[kind], what
                archive.addfile(info)
            else:
                info.size = len(what)
                archive.addfile(info, io.BytesIO(what.encode()))
    out.seek(0)
    return out


MESS = (
    "mkdir -p .git d; echo x > .git/HEAD; echo 'a,b' > 'd/a,b'; echo g > 'd/*'; echo h > hard1; ln hard1 hard2;"
    "ln -s /workspace/d/x inside; ln -s /usr/bin/env venv; mkfifo fifo; printf x > \"$(printf 'n\\377')\";"
    "echo b > 'back\\slash'; chmod 600 hard1; chmod 755 d; mkdir -m 700 empty;"
    "head -c 3000000 /dev/urandom > random"
)
SAME = "find . ! -name fifo -printf '%P %y %m %l\\n' | sort; sha256sum random"


def test_an_archive_restores_on_another_backend(tmp_path: Path) -> None:
    """The SDK's own reader of archives, which its other backends use, takes it."""

    async def test(w: World) -> None:
        for portable in (True, False):
            s = await w.session(portable_archives=portable)
            assert (await s.exec("echo h > one; mkdir d; ln one d/two; ln -s /workspace/one d/sym")).ok()
            with tarfile.open(fileobj=await s.persist_workspace(), mode="r:") as archive:
                target = tmp_path / str(portable)
                target.mkdir()
                if not portable:
                    with pytest.raises(UnsafeTarMemberError, match="hardlink"):
                        safe_extract_tarfile(archive, root=target)
                    continue
                safe_extract_tarfile(archive, root=target)
            for name in ("one", "d/two", "d/sym"):
                assert (target / name).read_text() == "h\n"

    run(test)


def test_review_finding_persist_and_hydrate_need_no_grant() -> None:
    """An ordinary workspace goes out and comes in, with the root where it is and no grant of anything else."""

    async def test(w: World) -> None:
        s = await w.session()
        assert s.state.manifest.root == "/workspace" and s.state.manifest.extra_path_grants == ()
        assert (await s.exec(MESS)).ok()
        archive = await s.persist_workspace()
        other = await w.session()
        await other.hydrate_workspace(archive)
        want = (await s.exec(SAME)).stdout.replace(b"inside l 777 /workspace/d/x", b"inside l 777 d/x")
        assert (await other.exec(SAME)).stdout == want
        assert (await other.exec("test hard1 -ef hard2 && cat inside 2>&1; test ! -e fifo")).ok()

    run(test)


def test_a_session_comes_back_from_its_snapshot() -> None:
    async def test(w: World) -> None:
        manifest = Manifest(
            entries={
                "f": File(content=b"first"),
                "tmp": Dir(children={"e": File(content=b"again")}, ephemeral=True),
                "[x]": File(content=b"", ephemeral=True),
            },
            users=[User(name="alice")],
        )
        s = await w.session(manifest, kept=True)
        await s.exec(
            "echo changed > f; echo x > tmp/left; mkdir x; echo keep > x/f; echo a > hers; chown alice hers"
        )
        s.register_persist_workspace_skip_path("x/skipped")
        await s.exec("echo s > x/skipped; echo t > skipped")
        await s.aclose()
        snapshot = s.state.snapshot
        assert isinstance(snapshot, LocalSnapshot)
        with tarfile.open(snapshot.base_path / f"{snapshot.id}.tar") as kept:
            names = {n.removeprefix("./") for n in kept.getnames()}
        assert names - {".", ""} == {"f", "x", "x/f", "hers", "skipped"}

        back = await w.client.resume(w.again(s))
        await back.start()
        told = await back.exec("cat f x/f tmp/e; stat -c %U hers; ls -A tmp")
        assert told.stdout == b"changed\nkeep\nagainalice\ne\n"
        assert (await back.exec("echo more >> hers", user="alice")).ok()

    run(test)


def test_what_changed_is_noticed_and_what_did_not_is_left() -> None:
    async def test(w: World) -> None:
        s = await w.session(Manifest(entries={"f": File(content=b"1")}), kept=True)
        await s.stop()
        await s.exec("touch f")  # the same content
        back = await w.client.resume(w.again(s))
        with counted() as calls:
            await back.start()
        assert not [c for c in calls if c.startswith("PUT")], calls
        for drift in ("echo 2 > f", "chmod 600 f", "mkdir d", "ln -s f l", "chown 5 f"):
            await s.exec(drift)
            with counted() as calls:
                back = await w.client.resume(w.again(s))
                await back.start()
            assert [c for c in calls if c.startswith("PUT")], drift
        assert (await s.exec("ls -A; cat f; stat -c %a%u f")).stdout == b"f\n17550\n"

    run(test)


def test_archives_of_others() -> None:
    async def test(w: World) -> None:
        s = await w.session()
        foreign = tar(
            ("./a", "file", "content"),
            ("b", "hard", "./a"),
            ("abs", "sym", "/usr/bin/env"),
            ("d/e", "file", "x"),
        )
        await s.hydrate_workspace(foreign)
        assert (await s.exec("cat b d/e; readlink abs")).stdout == b"contentx/usr/bin/env\n"
        bad: dict[str, Any] = {
            "absolute": tar(("ok", "file", "1"), ("/etc/x", "file", "2")),
            "above": tar(("ok", "file", "1"), ("../x", "file", "2")),
            "through": tar(("ok", "file", "1"), ("l", "sym", "/etc"), ("l/x", "file", "2")),
            "link": tar(("ok", "file", "1"), ("h", "hard", "/etc/passwd")),
            "device": tar(("ok", "file", "1"), ("dev", "dev", "")),
            "two": tar(("ok", "file", "1"), ("x", "file", "2"), ("x", "sym", "ok")),
            "text": io.BytesIO(b"no archive at all" * 100),
            "cut": io.BytesIO(tar(("ok", "file", "1" * 5000)).read()[:3000]),
            "snapshot": io.BytesIO(b"CLOCHE_SNAPSHOT_V1\n{}"),
        }
        for what, archive in bad.items():
            with pytest.raises(WorkspaceArchiveWriteError) as e:
                await s.hydrate_workspace(archive)
            assert e.value.context["reason"] == "unsafe_or_invalid_tar", what
            assert (await s.exec("ls -A | sort; test ! -e /etc/x")).stdout == b"a\nabs\nb\nd\n", what
        strict = await w.session(external_symlinks="reject")
        with pytest.raises(WorkspaceArchiveWriteError):
            await strict.hydrate_workspace(tar(("abs", "sym", "/usr/bin/env")))

    run(test)


def test_snapshots_of_the_daemons() -> None:
    async def test(w: World) -> None:
        s = await w.session(
            Manifest(entries={"f": File(content=b"1")}, users=[User(name="alice")]),
            kept=True,
            workspace_persistence="snapshot",
            name=f"n-{w.mark[:8]}",
        )

        async def kept() -> list[str]:
            listed = await w.api.request("GET", "/v1/snapshots")
            return [x["id"] for x in listed["snapshots"] or [] if x["sandbox"] in ids]

        ids = {s.state.sandbox_id}  # type: ignore[attr-defined]
        await s.exec("echo two > f; echo n > new; chown alice new")
        await s.stop()
        first = await kept()
        await s.stop()
        second = await kept()
        assert len(first) == len(second) == 1 and first != second
        await s.exec("echo drift > f")
        back = await w.client.resume(w.again(s))
        await back.start()
        ids.add(back.state.sandbox_id)  # type: ignore[attr-defined]
        assert [back.state.sandbox_id] == await w.sandboxes()  # type: ignore[attr-defined]
        assert (await back.exec("cat f; stat -c %U new; id -un", user="alice")).stdout == b"two\nalice\nalice\n"

        await back.shutdown()
        anew = await w.client.resume(w.again(back))
        await anew.start()
        assert (await anew.exec("cat f new")).stdout == b"two\nn\n"
        for left in await kept():
            await w.api.request("DELETE", f"/v1/snapshots/{left}")
        again = await w.client.resume(w.again(anew))
        with pytest.raises(WorkspaceArchiveWriteError) as e:
            await again.start()
        assert e.value.context["reason"] == "snapshot_not_found"

    run(test)


def test_what_must_not_be_kept_makes_an_archive_of_it() -> None:
    async def test(w: World) -> None:
        manifest = Manifest(entries={"secret": File(content=b"s", ephemeral=True), "f": File(content=b"f")})
        s = await w.session(manifest, workspace_persistence="snapshot")
        archive = await s.persist_workspace()
        with tarfile.open(fileobj=archive) as kept:
            assert {n.removeprefix("./") for n in kept.getnames()} - {".", ""} == {"f"}

    run(test)


def test_a_snapshot_that_cannot_be_stored() -> None:
    async def test(w: World) -> None:
        s = await w.session(kept=True)

        class Full(SnapshotBase):
            type: Literal["full-of-cloche-tests"] = "full-of-cloche-tests"

            async def persist(self, data: io.IOBase, *, dependencies: Any = None) -> None:
                raise OSError("no room")

            async def restore(self, *, dependencies: Any = None) -> io.IOBase:
                raise FileNotFoundError

            async def restorable(self, *, dependencies: Any = None) -> bool:
                return False

        s.state.snapshot = Full(id="x")
        with pytest.raises(OSError):
            await s.stop()
        assert s.state.snapshot_fingerprint is None and await s.running()
        await w.api.remove(s.state.sandbox_id)  # type: ignore[attr-defined]
        with pytest.raises(WorkspaceArchiveReadError):
            await s.persist_workspace()

    run(test)


class Tearing(io.RawIOBase):
    """An archive of 64 MiB, in the middle of which the wire tears."""

    def __init__(self, tear: Callable[[], None]) -> None:
        with tarfile.open(fileobj=(whole := io.BytesIO()), mode="w") as archive:
            for name in ("f", "large"):
                info = tarfile.TarInfo(name)
                info.size = 64 << 20 if name == "large" else 0
                archive.addfile(info, io.BytesIO(bytes(info.size)))
        whole.seek(0)
        self._whole, self._tear = whole, tear

    def read(self, size: int = -1) -> bytes:
        if self._whole.tell() > 8 << 20:
            self._tear()
        return self._whole.read(size)


def test_a_wire_that_tears_in_mid_archive() -> None:
    """Half an archive is an error, and nothing of it is in the workspace or in what is kept."""

    async def test(w: World) -> None:
        async with wire() as line, ClocheSandboxClient(line.host) as client:
            s = await client.create(snapshot=w.snapshots, options=w.options())
            await s.start()
            await s.exec("echo old > f")
            loop = asyncio.get_running_loop()
            with pytest.raises(WorkspaceArchiveWriteError):
                await s.hydrate_workspace(Tearing(lambda: loop.call_soon_threadsafe(line.snap)))  # type: ignore[arg-type]

            async def as_it_was() -> bool:
                return (await s.exec("ls -A; cat f")).stdout == b"f\nold\n"

            await eventually(as_it_was)

            await s.exec("truncate -s 64M large")
            task = asyncio.ensure_future(s.persist_workspace())
            await line.carried(4 << 20)
            line.snap()
            with pytest.raises(WorkspaceArchiveReadError):
                await task
            assert not await s.state.snapshot.restorable() and s.state.snapshot_fingerprint is None
            await s.exec("rm large")
            await s.aclose()
            assert await s.state.snapshot.restorable()

    run(test)
