"""Files, and where their paths may lead."""

from __future__ import annotations

import hashlib
import io
import tarfile
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from agents.sandbox import (
    Manifest,
    SandboxPathGrant,
    User,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.errors import ExecNonZeroError, InvalidManifestPathError
from agents.sandbox.files import EntryKind

from .support import World, counted, needs_daemon, run

pytestmark = needs_daemon


async def content(s: Any, path: str, **given: Any) -> bytes:
    with await s.read(Path(path), **given) as f:
        return bytes(f.read())


def test_read_and_write() -> None:
    async def test(w: World) -> None:
        s = await w.session()
        every = bytes(range(256)) * 40
        for name, data in {
            "a/b/c": every,
            "empty": b"",
            "-n": b"x",
            "sp ace\nline": b"y",
            "ü*?[": b"z",
        }.items():
            await s.write(Path(name), io.BytesIO(data))
            assert await content(s, name) == data
        await s.exec("chmod 750 a/b/c; ln -s a/b/c link")
        await s.write(Path("link"), io.BytesIO(b"through"))
        assert (await s.exec("stat -c %a a/b/c; readlink link; cat a/b/c")).stdout == b"750\na/b/c\nthrough"
        assert not (await s.exec("ls -A . a/b | grep cloche")).ok()
        assert await s.read_bounded(Path("a/b/c"), max_bytes=3) == b"thr"
        with pytest.raises(WorkspaceReadNotFoundError):
            await s.read(Path("nothing/there"))
        with pytest.raises(WorkspaceArchiveReadError) as e:
            await s.read(Path("a"))
        assert e.value.context["reason"] == "is_a_directory"
        with pytest.raises(WorkspaceArchiveWriteError):
            await s.write(Path("a"), io.BytesIO(b""))
        with pytest.raises(WorkspaceArchiveWriteError):
            await s.write(Path("empty/below"), io.BytesIO(b""))

        class Wrong(io.IOBase):
            def read(self, size: int = -1) -> int:
                return 5

        with pytest.raises(WorkspaceWriteTypeError):
            await s.write(Path("f"), Wrong())

    run(test)


def test_a_file_of_100_mib_both_ways() -> None:
    async def test(w: World) -> None:
        s = await w.session()
        block = bytes(range(256)) * 4096 + b"!"
        with tempfile.TemporaryFile() as f:
            want = hashlib.sha256()
            for _ in range(101):
                f.write(block)
                want.update(block)
            f.seek(0)
            await s.write(Path("dir/large"), f)
        told = await s.exec("sha256sum dir/large; stat -c %s dir/large")
        assert told.stdout.split() == [want.hexdigest().encode(), b"dir/large", str(101 * len(block)).encode()]
        got = hashlib.sha256()
        with await s.read(Path("dir/large")) as back:
            while piece := back.read(1 << 20):
                got.update(piece)
        assert got.hexdigest() == want.hexdigest()

    run(test)


def test_paths_are_confined() -> None:
    async def test(w: World) -> None:
        manifest = Manifest(
            extra_path_grants=(
                SandboxPathGrant(path="/srv/rw"),
                SandboxPathGrant(path="/srv/rw/fixed", read_only=True),
            )
        )
        s = await w.session(manifest)
        await s.exec(
            "mkdir -p /srv/rw/fixed in/side; echo r > /srv/rw/fixed/f; ln -s / root; ln -s /etc/passwd leaf;"
            "ln -s ../../../etc up; ln -s nowhere/../../../etc/x dangling; ln -s in inner; ln -s loop loop;"
            "ln -s /srv/rw granted; ln -s /srv/rw/fixed fixed"
        )
        for path in ("leaf", "root/etc/passwd", "up/passwd", "dangling", "root/srv/rw/../x/../../etc/passwd"):
            with pytest.raises(InvalidManifestPathError) as e:
                await s.read(Path(path))
            assert e.value.context["reason"] == "escape_root", path
            with pytest.raises(InvalidManifestPathError):
                await s.write(Path(path), io.BytesIO(b"x"))
        with pytest.raises(InvalidManifestPathError):
            await s.ls("root")
        with pytest.raises(InvalidManifestPathError):
            await s.mkdir("root/workspace2", parents=True)
        with pytest.raises(InvalidManifestPathError):
            await s.rm("root/etc/passwd")
        for lexical in ("../etc/passwd", "/etc/passwd"):
            with pytest.raises(InvalidManifestPathError):
                await s.read(Path(lexical))
        with pytest.raises(WorkspaceArchiveReadError) as looped:
            await s.read(Path("loop"))
        assert looped.value.context["reason"] == "symlink_loop"

        await s.write(Path("inner/side/f"), io.BytesIO(b"inside"))
        assert await content(s, "in/side/f") == b"inside"
        await s.write(Path("granted/f"), io.BytesIO(b"granted"))
        assert await content(s, "/srv/rw/f") == b"granted"
        assert await content(s, "fixed/f") == b"r\n"
        for fixed in ("fixed/f", "/srv/rw/fixed/new", "granted/fixed/f"):
            with pytest.raises(WorkspaceArchiveWriteError) as refused:
                await s.write(Path(fixed), io.BytesIO(b"x"))
            assert refused.value.context["reason"] == "read_only_extra_path_grant"
        # The link is what is named, so it may go.
        await s.rm("leaf")
        assert (await s.exec("test -e /etc/passwd && ! test -L leaf")).ok()

    run(test)


def test_directories() -> None:
    async def test(w: World) -> None:
        s = await w.session(Manifest(users=[User(name="alice")]))
        await s.exec(
            "touch 'a b' \"$(printf 'n\\nl')\" -- -x .hid; ln -s gone link; mkdir d; mkfifo p; chown alice d"
        )
        found = {f.path: f for f in await s.ls(".")}
        names = {"a b", "n\nl", "-x", ".hid", "link", "d", "p"}
        assert set(found) == {f"/workspace/{n}" for n in names}
        d = found["/workspace/d"]
        assert (d.kind, d.owner, d.group, str(d.permissions)) == (
            EntryKind.DIRECTORY,
            "alice",
            "root",
            "drwxr-xr-x",
        )
        assert found["/workspace/link"].kind == EntryKind.SYMLINK
        assert found["/workspace/p"].kind == EntryKind.OTHER
        await s.mkdir("m/k", parents=True)
        await s.mkdir("m/k", parents=True)
        for refused in (s.mkdir("m"), s.mkdir("x/y"), s.rm("m"), s.rm("none"), s.ls("none"), s.ls("a b")):
            with pytest.raises(ExecNonZeroError):
                await refused
        await s.rm("m", recursive=True)
        await s.rm("m", recursive=True)
        await s.mv("a b", "moved")
        assert not await s.same_file("moved", "d") and await s.same_file("moved", "moved")

    run(test)


def test_files_of_a_user() -> None:
    async def test(w: World) -> None:
        s = await w.session(Manifest(users=[User(name="alice")]))
        await s.exec(
            "mkdir hers shut; chown alice hers; chmod 755 . ; chmod 700 shut; echo no > shut/f; echo ro > root"
        )
        await s.write(Path("hers/new/f"), io.BytesIO(b"1"), user="alice")
        await s.write(Path("hers/large"), io.BytesIO(b"2" * (5 << 20)), user=User(name="alice"))
        await s.mkdir("hers/d", user="alice")
        told = await s.exec("stat -c %U hers/new hers/new/f hers/large hers/d | sort -u")
        assert told.stdout == b"alice\n"
        assert await content(s, "hers/new/f", user="alice") == b"1"
        assert await content(s, "root", user="alice") == b"ro\n"
        with pytest.raises(WorkspaceArchiveReadError) as e:
            await s.read(Path("shut/f"), user="alice")
        assert e.value.context["reason"] == "permission_denied"
        for path in ("shut/f", "root", "top", "shut/x/y"):
            with pytest.raises(WorkspaceArchiveWriteError):
                await s.write(Path(path), io.BytesIO(b"x"), user="alice")
        for refused in (s.ls("shut", user="alice"), s.rm("root", user="alice"), s.mkdir("top", user="alice")):
            with pytest.raises(ExecNonZeroError):
                await refused
        assert (await s.exec("cat root shut/f")).stdout == b"ro\nno\n"

    run(test)


def test_patches_and_archives() -> None:
    async def test(w: World) -> None:
        s = await w.session()
        await s.apply_patch({"type": "create_file", "path": "src/a.py", "diff": "+one\n+two\n"})
        await s.exec("chmod 755 src/a.py")
        await s.apply_patch({"type": "update_file", "path": "src/a.py", "diff": "@@\n one\n-two\n+three\n"})
        assert (await s.exec("stat -c %a src/a.py; cat src/a.py")).stdout == b"755\none\nthree"
        await s.apply_patch({"type": "delete_file", "path": "src/a.py"})
        with pytest.raises(WorkspaceReadNotFoundError):
            await s.read(Path("src/a.py"))

        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            info = tarfile.TarInfo("x/y")
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
        packed.seek(0)
        await s.extract(Path("out.tar"), packed, compression_scheme="tar")
        assert (await s.exec("find . -name y -exec cat {} +")).stdout == b"abc"

    run(test)


def test_small_files_are_one_call() -> None:
    async def test(w: World) -> None:
        s = await w.session(Manifest(users=[User(name="alice")]))
        counts: dict[str, int] = {}
        works: dict[str, Callable[[], Awaitable[Any]]] = {
            "write": lambda: s.write(Path("f"), io.BytesIO(b"x")),
            "read": lambda: s.read(Path("f")),
            "read as a user": lambda: s.read(Path("f"), user="alice"),
            "mkdir": lambda: s.mkdir("d/e", parents=True),
            "ls": lambda: s.ls("d"),
            "rm": lambda: s.rm("d", recursive=True),
        }
        for name, work in works.items():
            with counted() as calls:
                await work()
            counts[name] = len(calls)
        assert counts == {"write": 1, "read": 1, "read as a user": 1, "mkdir": 1, "ls": 1, "rm": 1}
        with counted() as calls:
            await s.apply_patch({"type": "create_file", "path": "p", "diff": "+one\n"})
            await s.apply_patch({"type": "delete_file", "path": "p"})
        assert len(calls) <= 4, calls

    run(test)
