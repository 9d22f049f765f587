"""The part of a session that puts a manifest in place: the accounts by one call, the files by one archive."""

from __future__ import annotations

import asyncio
import contextlib
import re
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from agents.sandbox import Dir, LocalFile, Manifest
from agents.sandbox.entries import BaseEntry, File, LocalDir
from agents.sandbox.errors import ExecNonZeroError, WorkspaceStartError
from agents.sandbox.materialization import MaterializationResult, MaterializedFile
from agents.sandbox.session.manifest_application import ManifestApplier
from agents.sandbox.types import ExecResult

from cloche._address import CHUNK
from cloche.errors import ClocheError
from cloche.openai_agents import failures
from cloche.openai_agents.files import FileSession, take
from cloche.openai_agents.running import sdk_result
from cloche.spec import MIB, NewFile

if TYPE_CHECKING:
    import io

    from agents.sandbox.session import BaseSandboxSession

ACCOUNT = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
"""What a user or a group may be called."""

# What is told of a file alone, and of nothing that has to happen inside.
_RECORDED = (File, Dir, LocalFile, LocalDir)

_ACCOUNTS = r"""
nl='
'
# field FILE NAME prints the number of what has that name.
field() {
    while IFS=: read -r name _ id _ || [ -n "$name" ]; do
        if [ "$name" = "$2" ]; then printf '%s' "$id"; return 0; fi
    done < "$1"
    return 1
}
used() {
    for file in /etc/passwd /etc/group; do
        while IFS=: read -r name _ id _ || [ -n "$name" ]; do
            [ "$id" != "$1" ] || return 0
        done < "$file"
    done
    return 1
}
append() {
    if [ -s "$1" ] && [ -n "$(tail -c 1 "$1")" ]; then printf '\n' >> "$1" || exit 1; fi
    printf '%s\n' "$2" >> "$1" || exit 1
}
number() {
    next=1000
    while used "$next"; do next=$((next + 1)); done
}
group() {
    field /etc/group "$1" > /dev/null && return
    number
    append /etc/group "$1:x:$next:"
}
user() {
    field /etc/passwd "$1" > /dev/null && return
    if ! own=$(field /etc/group "$1"); then
        number
        own=$next
        append /etc/group "$1:x:$own:"
    fi
    id=$own
    used_by_user=
    while IFS=: read -r _ _ there _ || [ -n "$there" ]; do
        [ "$there" != "$id" ] || used_by_user=1
    done < /etc/passwd
    if [ -n "$used_by_user" ]; then number; id=$next; fi
    append /etc/passwd "$1:x:$id:$own::/home/$1:/usr/sbin/nologin"
}
member() {
    out=
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
            "$1":*)
                list=${line##*:}
                case ,$list, in
                    *,"$2",*) ;;
                    *) line=$line${list:+,}$2 ;;
                esac ;;
        esac
        out=$out$line$nl
    done < /etc/group
    printf '%s' "$out" > /etc/group || exit 1
}
for file in /etc/passwd /etc/group; do [ -e "$file" ] || : > "$file" || exit 1; done
for what; do
    name=${what#*:}
    case $what in
        group:*) group "$name" ;;
        user:*) user "$name" ;;
        member:*) member "${name%%:*}" "${name#*:}" ;;
    esac
done
"""
"""Needs no useradd, and leaves alone what is there."""

_CHGRP = 'while [ $# -gt 1 ]; do chgrp -- "$1" "$2" || exit; shift 2; done'


@dataclass
class _Recorded:
    directory: bool
    mode: int | None = None
    group: str = ""
    offset: int = 0
    size: int = 0


_EARLY = 32
"""So many files come with a request for a sandbox at most."""


class _HappensInside(Exception):
    """What is applied is no file."""


@dataclass
class Early:
    """The ephemeral files of a manifest that come with the request for a sandbox."""

    files: dict[str, NewFile]
    result: MaterializationResult


class _Recorder:
    """Stands in for the session where entries are applied, so that the SDK's own code reads the host's files,
    and remembers what they want. The archive is made of that."""

    def __init__(self, session: ManifestSession) -> None:
        self._session = session
        self._root = session._workspace_root_path()
        self._found: dict[str, _Recorded] = {}
        self._content: IO[bytes] = tempfile.TemporaryFile()
        self._one = asyncio.Lock()
        self.state = session.state
        self._max_local_dir_file_concurrency = session._max_local_dir_file_concurrency

        self.early = False

    def close(self) -> None:
        self._content.close()

    def _at(self, path: Path | str, *, directory: bool) -> _Recorded | None:
        name = Path(path).relative_to(self._root).as_posix()
        if name == ".":
            return None
        found = self._found.setdefault(name, _Recorded(directory))
        found.directory = directory
        return found

    async def mkdir(self, path: Path | str, *, parents: bool = False, user: object = None) -> None:
        self._at(path, directory=True)

    async def write(self, path: Path, data: io.IOBase, *, user: object = None) -> None:
        found = self._at(path, directory=False)
        if found is None:
            raise ValueError("the root of the workspace is a directory")
        async with self._one:  # the SDK copies several at once
            found.offset, found.size = self._content.tell(), 0
            while piece := await take(path, data, CHUNK):
                self._content.write(piece)
                found.size += len(piece)

    async def _exec_checked_nonzero(self, *command: str | Path) -> ExecResult:
        verb, value, path = (str(word) for word in command)
        name = Path(path).relative_to(self._root).as_posix()
        found = self._found.get(name)
        if found is not None and verb == "chmod":
            found.mode = int(value, 8)
        elif found is not None and verb == "chgrp":
            found.group = value
        return ExecResult(stdout=b"", stderr=b"", exit_code=0)

    async def _apply_entry_batch(
        self, entries: Sequence[tuple[Path, BaseEntry]], *, base_dir: Path
    ) -> list[MaterializedFile]:
        out: list[MaterializedFile] = []
        for dest, entry in entries:
            out += await self.apply(entry, dest, base_dir)
        return out

    async def apply(self, entry: BaseEntry, dest: Path, base_dir: Path) -> list[MaterializedFile]:
        """Remembers what is only files. Anything else happens inside, after what came before it."""
        if type(entry) in _RECORDED:
            return await entry.apply(cast("BaseSandboxSession", self), dest, base_dir)
        if self.early:
            raise _HappensInside
        await self.flush()
        return await entry.apply(self._session, dest, base_dir)

    def small(self) -> dict[str, NewFile] | None:
        """What was remembered by its path, if all of it can come with the request for a sandbox."""
        found = self._found
        full = {parent.as_posix() for name in found for parent in Path(name).parents}
        out: dict[str, NewFile] = {}
        for name, f in found.items():
            if f.directory and f.mode is None and not f.group and name in full:
                continue  # it is made with what is in it
            mode = 0o644 if f.mode is None else f.mode
            if f.directory or f.group or not 0 < mode <= 0o777 or len(out) == _EARLY:
                return None
            self._content.seek(f.offset)
            out[name] = NewFile(self._content.read(f.size), mode)
        return out if sum(f.size for f in found.values()) <= MIB else None

    async def flush(self) -> None:
        """Sends what was remembered."""
        found, self._found = self._found, {}
        if not found:
            return
        archive = await asyncio.to_thread(self._pack, found)
        try:
            await self._session._unpack(archive)
        finally:
            archive.close()
        self._content.seek(0)
        self._content.truncate()
        pairs = [w for name, f in found.items() if f.group for w in (f.group, (self._root / name).as_posix())]
        if pairs:
            await self._session._as_root(_CHGRP, pairs, "chgrp")

    def _pack(self, found: dict[str, _Recorded]) -> IO[bytes]:
        full = {parent.as_posix() for name in found for parent in Path(name).parents}
        out: IO[bytes] = tempfile.TemporaryFile()
        now = int(time.time())
        with tarfile.open(
            fileobj=out, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
        ) as tar:
            for name, f in found.items():
                if f.directory and f.mode is None and name in full:
                    continue  # it is made with what is in it, and keeps its mode where it is there
                info = tarfile.TarInfo(name)
                info.type = tarfile.DIRTYPE if f.directory else tarfile.REGTYPE
                info.mode = (0o755 if f.directory else 0o644) if f.mode is None else f.mode
                info.size, info.mtime = f.size, now
                self._content.seek(f.offset)
                tar.addfile(info, None if f.directory else self._content)
        out.seek(0)
        return out


class ManifestSession(FileSession):
    """Manifests."""

    _accounts_made = False
    _early: Early | None = None
    """What is in the sandbox since it was made."""

    async def early(self) -> Early | None:
        """The ephemeral files, where nothing ephemeral is anything else. What cannot be read is told when the
        session starts."""
        recorder = _Recorder(self)
        recorder.early = True
        try:
            result = await self._applier(recorder).apply_manifest(
                self.state.manifest,
                only_ephemeral=True,
                provision_accounts=False,
                base_dir=self._manifest_base_dir(),
            )
            files = recorder.small()
        except Exception:
            return None
        finally:
            recorder.close()
        return Early(files, result) if files else None

    async def _apply_manifest(
        self, *, only_ephemeral: bool = False, provision_accounts: bool = True
    ) -> MaterializationResult:
        early, self._early = self._early, None
        if only_ephemeral and early is not None:
            return early.result
        if provision_accounts and not only_ephemeral:
            await self.provision_manifest_accounts()
        async with self._recording() as applier:
            return await applier.apply_manifest(
                self.state.manifest,
                only_ephemeral=only_ephemeral,
                provision_accounts=False,
                base_dir=self._manifest_base_dir(),
            )

    async def _apply_entry_batch(
        self, entries: Sequence[tuple[Path, BaseEntry]], *, base_dir: Path
    ) -> list[MaterializedFile]:
        async with self._recording() as applier:
            return await applier._apply_entry_batch(entries, base_dir=base_dir)

    @contextlib.asynccontextmanager
    async def _recording(self) -> AsyncIterator[ManifestApplier]:
        """The SDK's own way to apply entries, to a recorder; what it has remembered is sent at the end."""
        recorder = _Recorder(self)
        try:
            yield self._applier(recorder)
            await recorder.flush()
        finally:
            recorder.close()

    def _applier(self, recorder: _Recorder) -> ManifestApplier:
        return ManifestApplier(
            mkdir=recorder.mkdir,
            exec_checked_nonzero=self._exec_checked_nonzero,
            apply_entry=recorder.apply,
            max_entry_concurrency=1,
        )

    async def provision_manifest_accounts(self) -> None:
        """Makes the users and groups that the image has not."""
        if wanted := accounts(self.state.manifest):
            await self._as_root(_ACCOUNTS, wanted, "accounts")
        self._accounts_made = True

    async def _reapply_ephemeral_manifest_on_resume(self) -> None:
        # Files may have been kept where the root, which has the accounts, was not.
        if self.should_provision_manifest_accounts_on_resume() and not self._accounts_made:
            await self.provision_manifest_accounts()
        await super()._reapply_ephemeral_manifest_on_resume()

    async def _as_root(self, script: str, args: Sequence[str], what: str) -> None:
        try:
            got = await self._tool(script, args, user="root")
        except ClocheError as e:
            raise self._start_error(e) from e
        if got.exit_code != 0:
            raise ExecNonZeroError(sdk_result(got), command=(what, *args))

    async def _unpack(self, archive: IO[bytes]) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            while piece := await asyncio.to_thread(archive.read, MIB):
                yield piece

        try:
            await self._sandbox.files.tar_in(self._workspace_root_path().as_posix(), pieces())
        except ClocheError as e:
            raise self._start_error(e) from e

    def _start_error(self, e: ClocheError) -> WorkspaceStartError:
        return WorkspaceStartError(
            path=self._workspace_root_path(),
            context=failures.context(e),
            cause=e,
            message=str(e),
            retryable=failures.retryable(e),
        )


def accounts(manifest: Manifest) -> list[str]:
    """What the script for accounts is to make, in the order of the manifest so that numbers stay the same."""
    users = [u.name for u in manifest.users] + [u.name for g in manifest.groups for u in g.users]
    return [
        *(f"group:{g.name}" for g in manifest.groups),
        *(f"user:{name}" for name in dict.fromkeys(users)),
        *(f"member:{g.name}:{u.name}" for g in manifest.groups for u in g.users),
    ]
