"""The part of a session that reads and writes files, each by one call."""

from __future__ import annotations

import asyncio
import io
import posixpath
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Literal, NoReturn, cast

from agents.sandbox import WorkspaceArchiveReadError, WorkspaceArchiveWriteError, WorkspaceReadNotFoundError
from agents.sandbox.errors import ExecNonZeroError, InvalidManifestPathError, WorkspaceWriteTypeError
from agents.sandbox.files import EntryKind, FileEntry
from agents.sandbox.types import ExecResult, Permissions, User

from cloche._address import CHUNK
from cloche.errors import ClocheError
from cloche.openai_agents import failures
from cloche.openai_agents.running import RunningSession, name_of
from cloche.spec import MIB, Access, FileInfo

SMALL = 4 * MIB
"""Up to so many bytes a file is held in memory."""

_KINDS = {"file": EntryKind.FILE, "dir": EntryKind.DIRECTORY, "symlink": EntryKind.SYMLINK}
_REASONS = {
    "EISDIR": "is_a_directory",
    "EACCES": "permission_denied",
    "EPERM": "permission_denied",
    "ENOENT": "not_found",
}


class FileSession(RunningSession):
    """Files. Where a path leads is found out inside, by the user for whom it is, and what that user may not do
    is not done; what leads out of the workspace and the manifest's grants is refused."""

    def _access(self, user: str | User | None = None) -> Access:
        """As whom, and within what: the workspace and the manifest's grants."""
        policy = self._workspace_path_policy()
        rules = policy.extra_path_grant_rules()
        return {
            "user": name_of(user),
            "within": [
                policy.sandbox_root().as_posix(),
                *(root.as_posix() for root, fixed in rules if not fixed),
            ],
            "read_within": [root.as_posix() for root, fixed in rules if fixed],
        }

    def _name(self, path: Path | str, *, for_write: bool = False) -> str:
        return self._workspace_path_policy().normalize_sandbox_path(path, for_write=for_write).as_posix()

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        """Refuses what leads out. Whether it may be written is judged when it is."""
        workspace_path = self.normalize_path(path, for_write=for_write)
        try:
            await self._sandbox.files.stat(self._name(path, for_write=for_write), follow=True, **self._access())
        except ClocheError as e:
            _refuse(path, e)
            if not e.errno:
                raise _read_error(workspace_path, e) from e
        return workspace_path

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """The content of a file."""
        name = self._name(path)
        out: IO[bytes] = io.BytesIO()
        try:
            async for piece in self._sandbox.files.read_chunks(name, **self._access(user)):
                out.write(piece)
                if isinstance(out, io.BytesIO) and out.tell() > SMALL:
                    small, out = out, cast("IO[bytes]", tempfile.TemporaryFile())
                    out.write(small.getbuffer())
        except ClocheError as e:
            out.close()
            _refuse(path, e)
            raise _not_read(path, e) from e
        except BaseException:
            out.close()
            raise
        out.seek(0)
        return cast("io.IOBase", out)

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        """No more than that is sent."""
        try:
            return await self._sandbox.files.read(self._name(path), length=max_bytes, **self._access())
        except ClocheError as e:
            _refuse(path, e)
            raise _not_read(path, e) from e

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Replaces the content of a file, or makes it, with the directories that it wants."""
        name = self._name(path, for_write=True)
        head = await take(path, data, SMALL + 1)

        async def pieces() -> AsyncIterator[bytes]:
            piece = head
            while piece:
                yield piece
                piece = await take(path, data, CHUNK)

        try:
            content = head if len(head) <= SMALL else pieces()
            await self._sandbox.files.write(name, content, **self._access(user))
        except ClocheError as e:
            _refuse(path, e)
            raise _write_error(path, e) from e

    async def mkdir(self, path: Path | str, *, parents: bool = False, user: str | User | None = None) -> None:
        """Makes a directory."""
        name = self._name(path, for_write=True)
        try:
            await self._sandbox.files.mkdir(name, parents=parents, **self._access(user))
        except ClocheError as e:
            _failed("mkdir", path, e)

    async def rm(self, path: Path | str, *, recursive: bool = False, user: str | User | None = None) -> None:
        """Removes a file, or a symlink and not where it leads; with `recursive` a directory."""
        if recursive:
            self._workspace_path_policy().validate_recursive_remove(path)
        name = self._name(path, for_write=True)
        try:
            await self._sandbox.files.remove(
                name, recursive=recursive, keep_dirs=not recursive, **self._access(user)
            )
        except ClocheError as e:
            if not recursive or e.errno not in ("ENOENT", "ENOTDIR"):
                _failed("rm", path, e)

    async def mv(self, source: Path | str, destination: Path | str, *, user: str | User | None = None) -> None:
        """Renames a file or a symlink. What is at the destination is replaced, unless it is a directory."""
        origin, target = self._name(source, for_write=True), self._name(destination, for_write=True)
        access = self._access(user)
        try:
            found = await self._sandbox.files.stat(origin, **access)
            if found.type not in ("file", "symlink"):
                raise ClocheError(
                    "invalid_argument", "what is moved is a regular file or a symlink", errno="EINVAL"
                )
            await self._sandbox.files.move(origin, target, **access)
        except ClocheError as e:
            _failed("mv", source, e)

    async def ls(self, path: Path | str, *, user: str | User | None = None) -> list[FileEntry]:
        """What is in a directory, with names as they are."""
        name = self._name(path)
        try:
            found = await self._sandbox.files.list(name, **self._access(user))
        except ClocheError as e:
            _refuse(path, e)
            if e.errno:
                _nonzero("ls", path, e)
            raise _read_error(Path(path), e) from e
        return [_entry(name, f) for f in found]


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


def _entry(parent: str, f: FileInfo) -> FileEntry:
    kind = _KINDS.get(f.type, EntryKind.OTHER)
    permissions = Permissions.from_mode(f.mode)
    permissions.directory = kind == EntryKind.DIRECTORY
    return FileEntry(
        path=posixpath.join(parent, f.name),
        permissions=permissions,
        owner=f.user or str(f.uid),
        group=f.group or str(f.gid),
        size=f.size if f.type != "other" else 0,
        kind=kind,
    )


def _refuse(path: Path | str, e: ClocheError) -> None:
    """Raises what every operation has in common: the path leads where it may not."""
    if e.code == "denied" and e.rule == "within":
        reason: Literal["absolute", "escape_root"] = "absolute" if Path(path).is_absolute() else "escape_root"
        raise InvalidManifestPathError(rel=str(path), reason=reason, context={"detail": e.message}) from e
    if e.code == "denied" and e.rule == "read_within":
        raise WorkspaceArchiveWriteError(
            path=Path(path), context={"reason": "read_only_extra_path_grant", "detail": e.message}
        ) from e
    if e.field in ("within", "read_within") and not e.errno:
        raise ValueError(f"extra path grant must not lead to the filesystem root: {e.message}") from e
    if e.errno == "ELOOP":
        raise WorkspaceArchiveReadError(
            path=Path(path), context={"reason": "symlink_loop"}, cause=e, retryable=False
        ) from e


def _failed(op: str, path: Path | str, e: ClocheError) -> NoReturn:
    """Raises what became of a change."""
    _refuse(path, e)
    if e.errno:
        _nonzero(op, path, e)
    raise _write_error(Path(path), e) from e


def _nonzero(op: str, path: Path | str, e: ClocheError) -> NoReturn:
    """Raises what the SDK expects of a command that it would have run."""
    told = ExecResult(stdout=b"", stderr=f"{e.message}\n".encode(errors="replace"), exit_code=1)
    raise ExecNonZeroError(told, command=(op, str(path))) from e


def _context(e: ClocheError) -> dict[str, object]:
    if not e.errno:
        return failures.context(e)
    return failures.context(e, reason=_REASONS.get(e.errno, "failed"), errno=e.errno)


def _not_read(path: Path, e: ClocheError) -> WorkspaceReadNotFoundError | WorkspaceArchiveReadError:
    return WorkspaceReadNotFoundError(path=path, cause=e) if e.errno == "ENOENT" else _read_error(path, e)


def _read_error(path: Path, e: ClocheError) -> WorkspaceArchiveReadError:
    return WorkspaceArchiveReadError(path=path, context=_context(e), cause=e, retryable=_retryable(e))


def _write_error(path: Path, e: ClocheError) -> WorkspaceArchiveWriteError:
    return WorkspaceArchiveWriteError(path=path, context=_context(e), cause=e, retryable=_retryable(e))


def _retryable(e: ClocheError) -> bool | None:
    return False if e.errno and e.errno not in ("ENOSPC", "EDQUOT") else failures.retryable(e)
