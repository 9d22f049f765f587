"""The part of a session that reads and writes files, each by one call where it is small."""

from __future__ import annotations

import asyncio
import io
import os
import posixpath
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Literal, NoReturn, cast

from agents.sandbox import WorkspaceArchiveReadError, WorkspaceArchiveWriteError, WorkspaceReadNotFoundError
from agents.sandbox.errors import ExecNonZeroError, InvalidManifestPathError, WorkspaceWriteTypeError
from agents.sandbox.files import EntryKind, FileEntry
from agents.sandbox.types import Permissions, User

import cloche
from cloche._address import CHUNK
from cloche.errors import ClocheError, NotFound
from cloche.openai_agents import failures
from cloche.openai_agents.paths import SCRIPT
from cloche.openai_agents.running import RunningSession, name_of, sdk_result
from cloche.spec import MIB, FileInfo

SMALL = 4 * MIB
"""Up to so many bytes a file goes with the check of its path, in one call."""

_MISSING, _DIRECTORY, _FORBIDDEN, _ESCAPE, _LOOP, _ROOT_GRANT, _READ_ONLY = 66, 67, 68, 111, 112, 113, 114
_KINDS = {"file": EntryKind.FILE, "dir": EntryKind.DIRECTORY, "symlink": EntryKind.SYMLINK}


class FileSession(RunningSession):
    """Files. Where a path leads is found out inside, by the user for whom it is, and what that user may not do
    is not done; what leads out of the workspace and the manifest's grants is refused."""

    async def _at(
        self,
        op: str,
        path: Path | str,
        *,
        user: str = "",
        stdin: bytes = b"",
        max_output_bytes: int = MIB,
    ) -> cloche.ExecResult:
        """Resolves a path inside and does `op` there."""
        policy = self._workspace_path_policy()
        write = op not in ("read", "check", "list")
        name = policy.normalize_sandbox_path(path, for_write=write).as_posix()
        rules = [
            w for root, fixed in policy.extra_path_grant_rules() for w in (str(root), "1" if fixed else "0")
        ]
        args = [op, name, str(SMALL + 1), os.urandom(8).hex(), policy.sandbox_root().as_posix(), "0", *rules]
        result = await self._tool(SCRIPT, args, user=user, stdin=stdin, max_output_bytes=max_output_bytes)
        self._refuse(path, name, result)
        return result

    def _refuse(self, path: Path | str, name: str, result: cloche.ExecResult) -> None:
        """Raises what every operation has in common: the path leads where it may not."""
        told = result.stderr.strip()
        if result.exit_code == _ESCAPE:
            reason: Literal["absolute", "escape_root"] = (
                "absolute" if Path(path).is_absolute() else "escape_root"
            )
            raise InvalidManifestPathError(rel=str(path), reason=reason, context={"resolved_path": told})
        if result.exit_code == _ROOT_GRANT:
            raise ValueError(f"extra path grant must not lead to the filesystem root: {told}")
        if result.exit_code == _READ_ONLY:
            raise WorkspaceArchiveWriteError(
                path=Path(name), context={"reason": "read_only_extra_path_grant", "resolved_path": told}
            )
        if result.exit_code == _LOOP:
            raise WorkspaceArchiveReadError(
                path=Path(name), context={"reason": "symlink_loop"}, retryable=False
            )

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        workspace_path = self.normalize_path(path, for_write=for_write)
        try:
            await self._at("check-write" if for_write else "check", path)
        except ClocheError as e:
            raise _read_error(workspace_path, e) from e
        return workspace_path

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """The content of a file."""
        try:
            got = await self._at("read", path, user=name_of(user), max_output_bytes=SMALL + 1)
            if got.exit_code == 0 and len(got.stdout_bytes) <= SMALL and not got.truncated:
                return io.BytesIO(got.stdout_bytes)
            if got.exit_code == 0:
                return await self._download(self.normalize_path(path).as_posix())
        except NotFound as e:
            if failures.context(e)["reason"] == "sandbox_not_found":
                raise _read_error(path, e) from e
            raise WorkspaceReadNotFoundError(path=path, cause=e) from e
        except ClocheError as e:
            raise _read_error(path, e) from e
        if got.exit_code == _MISSING:
            raise WorkspaceReadNotFoundError(path=path)
        raise WorkspaceArchiveReadError(path=path, context=_refusal(got), retryable=False)

    async def _download(self, name: str) -> io.IOBase:
        out = tempfile.TemporaryFile()
        try:
            async for piece in self._sandbox.files.read_chunks(name):
                out.write(piece)
            out.seek(0)
        except BaseException:
            out.close()
            raise
        return cast("io.IOBase", out)

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        """No more than that is sent."""
        await self._validate_path_access(path)
        name = self.normalize_path(path).as_posix()
        try:
            return await self._sandbox.files.read(name, length=max_bytes)
        except NotFound as e:
            raise WorkspaceReadNotFoundError(path=path, cause=e) from e

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Replaces the content of a file, or makes it, with the directories that it wants."""
        name = name_of(user)
        try:
            head = await take(path, data, SMALL + 1)
            if len(head) <= SMALL:
                got = await self._at("write", path, user=name, stdin=head)
            else:
                got = await self._at("prepare", path, user=name)
                if got.exit_code == 0:
                    await self._upload(self.normalize_path(path).as_posix(), head, path, data, name)
        except ClocheError as e:
            raise WorkspaceArchiveWriteError(
                path=path, context=failures.context(e), cause=e, retryable=failures.retryable(e)
            ) from e
        if got.exit_code != 0:
            raise WorkspaceArchiveWriteError(path=path, context=_refusal(got), retryable=False)

    async def _upload(self, name: str, head: bytes, path: Path, data: io.IOBase, user: str) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            piece = head
            while piece:
                yield piece
                piece = await take(path, data, CHUNK)

        await self._sandbox.files.write(name, pieces())
        if user:
            got = await self._tool('exec chown -- "$1:" "$2"', [user, name], user="root")
            if got.exit_code != 0:
                raise ClocheError("internal", f"the file cannot be given to its user: {got.stderr.strip()}")

    async def _change(self, op: str, path: Path | str, user: str | User | None) -> None:
        try:
            got = await self._at(op, path, user=name_of(user))
        except ClocheError as e:
            raise WorkspaceArchiveWriteError(
                path=Path(path), context=failures.context(e), cause=e, retryable=failures.retryable(e)
            ) from e
        if got.exit_code != 0:
            _nonzero(got, op, path)

    async def mkdir(self, path: Path | str, *, parents: bool = False, user: str | User | None = None) -> None:
        """Makes a directory."""
        await self._change("mkdir-parents" if parents else "mkdir", path, user)

    async def rm(self, path: Path | str, *, recursive: bool = False, user: str | User | None = None) -> None:
        """Removes a file, or a symlink and not where it leads; with `recursive` a directory."""
        if recursive:
            self._workspace_path_policy().validate_recursive_remove(path)
        await self._change("remove-all" if recursive else "remove", path, user)

    async def ls(self, path: Path | str, *, user: str | User | None = None) -> list[FileEntry]:
        """What is in a directory, with names as they are."""
        name = self.normalize_path(path).as_posix()
        try:
            got = await self._at("list", path, user=name_of(user), max_output_bytes=SMALL)
            if got.exit_code != 0:
                _nonzero(got, "ls", path)
            found = await self._sandbox.files.list(name)
        except ClocheError as e:
            raise _read_error(Path(path), e) from e
        users, groups = (_names(part) for part in (got.stdout + "\0").split("\0")[:2])
        return [_entry(name, f, users, groups) for f in found]


async def take(path: Path, data: io.IOBase, size: int) -> bytes:
    """Up to so many bytes of what the SDK gives, without holding up the event loop."""
    out = bytearray()
    while len(out) < size:
        piece = await asyncio.to_thread(cast("IO[bytes]", data).read, size - len(out))
        if isinstance(piece, str):
            piece = piece.encode()
        if not isinstance(piece, (bytes, bytearray, memoryview, type(None))):
            raise WorkspaceWriteTypeError(path=path, actual_type=type(piece).__name__)
        if not piece:
            break
        out += piece
    return bytes(out)


def _names(text: str) -> dict[int, str]:
    """Names by number, of a file of accounts."""
    out: dict[int, str] = {}
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2].isdecimal():
            out.setdefault(int(fields[2]), fields[0])
    return out


def _entry(parent: str, f: FileInfo, users: dict[int, str], groups: dict[int, str]) -> FileEntry:
    kind = _KINDS.get(f.type, EntryKind.OTHER)
    permissions = Permissions.from_mode(f.mode)
    permissions.directory = kind == EntryKind.DIRECTORY
    return FileEntry(
        path=posixpath.join(parent, f.name),
        permissions=permissions,
        owner=users.get(f.uid, str(f.uid)),
        group=groups.get(f.gid, str(f.gid)),
        size=f.size if f.type != "other" else 0,
        kind=kind,
    )


def _refusal(got: cloche.ExecResult) -> dict[str, object]:
    reasons = {_DIRECTORY: "is_a_directory", _FORBIDDEN: "permission_denied", _MISSING: "not_found"}
    code = failures.exit_code(got)
    return {
        "backend": "cloche",
        "reason": reasons.get(code, "failed"),
        "exit_code": code,
        "stderr": got.stderr[:4096],
    }


def _nonzero(got: cloche.ExecResult, op: str, path: Path | str) -> NoReturn:
    raise ExecNonZeroError(sdk_result(got), command=(op, str(path)))


def _read_error(path: Path, e: ClocheError) -> WorkspaceArchiveReadError:
    return WorkspaceArchiveReadError(
        path=path, context=failures.context(e), cause=e, retryable=failures.retryable(e)
    )
