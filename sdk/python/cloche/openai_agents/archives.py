"""The part of a session that keeps a workspace and brings it back."""

from __future__ import annotations

import abc
import asyncio
import hashlib
import io
import json
import posixpath
import tarfile
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path, PurePath
from typing import IO, Literal, cast

from agents.sandbox import WorkspaceArchiveReadError, WorkspaceArchiveWriteError
from agents.sandbox.session.mount_lifecycle import with_ephemeral_mounts_removed
from agents.sandbox.snapshot import NoopSnapshot

from cloche._async import primitives
from cloche.errors import ClocheError, InvalidRequest, NotFound
from cloche.openai_agents import failures
from cloche.openai_agents.files import take
from cloche.openai_agents.manifests import ManifestSession
from cloche.spec import MIB

MAGIC = b"CLOCHE_SNAPSHOT_V1\n"
"""Begins what stands for a snapshot that the daemon keeps. Anything else is an archive."""

FINGERPRINT = "cloche_content_sha256_v1"
"""Which of all ways to tell two workspaces apart this is."""


class ArchiveSession(ManifestSession):
    """Archives and snapshots of the workspace."""

    _exported: IO[bytes] | None = None
    _persisting = False
    _clearing = False

    async def _persist_snapshot(self) -> None:
        before = self.state.native_snapshot
        self._persisting = True
        try:
            await super()._persist_snapshot()
        except BaseException:
            unused, self.state.native_snapshot = self.state.native_snapshot, before
            if unused != before:
                await primitives.finish(self._forget(unused))
            raise
        finally:
            self._persisting = False
            exported, self._exported = self._exported, None
            if exported is not None:
                exported.close()
        if isinstance(self.state.snapshot, NoopSnapshot):
            return
        if before and before != self.state.native_snapshot:
            await self._forget(before)

    async def _forget(self, snapshot: str) -> None:
        try:
            await self._api.request("DELETE", f"/v1/snapshots/{snapshot}")
        except ClocheError:
            return  # the operator's list has it, and nothing here depends on it

    def _keeps_natively(self) -> bool:
        """A snapshot of the daemon's holds all of a workspace, also what must not be kept."""
        return (
            self.state.options.workspace_persistence == "snapshot"
            and not self._persist_workspace_skip_relpaths()
            and not self._native_snapshot_requires_tar_fallback()
        )

    def _should_compute_snapshot_fingerprint_on_persist(self) -> bool:
        return not self._keeps_natively()

    async def persist_workspace(self) -> io.IOBase:
        """The workspace as an archive, or what stands for a snapshot of it."""
        if self._keeps_natively():
            return await self._persist_natively()
        exported, self._exported = self._exported, None
        if exported is not None:
            return cast("io.IOBase", exported)
        if not self.state.manifest.ephemeral_mount_targets():
            return cast("io.IOBase", await self._export())
        stream = await with_ephemeral_mounts_removed(
            self,
            self._export,
            error_path=self._workspace_root_path(),
            error_cls=WorkspaceArchiveReadError,
            operation_error_context_key=None,
        )
        return cast("io.IOBase", stream)

    async def _export(self) -> IO[bytes]:
        root = self._workspace_root_path()
        left = sorted(p.as_posix() for p in self._persist_workspace_skip_relpaths())
        out: IO[bytes] = tempfile.TemporaryFile()
        try:
            try:
                await self._write(out, root, left, "copy" if self.state.options.portable_archives else "keep")
            except ClocheError as e:
                if e.code != "unsupported":
                    raise
                # A sandbox that an older daemon made.
                await self._write(out, root, left, "keep")
            out.seek(0)
        except ClocheError as e:
            out.close()
            raise WorkspaceArchiveReadError(
                path=root, context=failures.context(e), cause=e, retryable=failures.retryable(e)
            ) from e
        except BaseException:
            out.close()
            raise
        return out

    async def _write(
        self, out: IO[bytes], root: PurePath, left: list[str], hard_links: Literal["keep", "copy"]
    ) -> None:
        archive = self._sandbox.files.tar_out(root.as_posix(), exclude=left, hard_links=hard_links)
        async for piece in archive:
            await asyncio.to_thread(out.write, piece)

    async def _persist_natively(self) -> io.IOBase:
        try:
            made = await self._sandbox.snapshot(scope="workspace")
        except ClocheError as e:
            raise WorkspaceArchiveReadError(
                path=self._workspace_root_path(),
                context=failures.context(e),
                cause=e,
                retryable=failures.retryable(e),
            ) from e
        if self._persisting:
            self.state.native_snapshot = made["id"]
        return io.BytesIO(MAGIC + json.dumps({"snapshot": made["id"]}).encode())

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Brings back what `persist_workspace` of this or of another provider has made. An archive that is
        refused leaves the workspace as it was."""
        root = self._workspace_root_path()
        start = data.tell() if getattr(data, "seekable", bool)() else None
        head = await take(root, data, len(MAGIC))
        if head == MAGIC:
            await self._hydrate_natively((await take(root, data, MIB)).decode(errors="replace"))
            return
        try:
            # So that files of the manifest's users stay theirs.
            if self.state.manifest.users or self.state.manifest.groups:
                try:
                    await self._import(head, data, owner="keep")
                    return
                except InvalidRequest as e:
                    # Where there is one user only, all is that one's.
                    if e.field != "owner" or start is None:
                        raise
                data.seek(start)
                head = await take(root, data, len(MAGIC))
            await self._import(head, data)
        except ClocheError as e:
            unsafe = isinstance(e, InvalidRequest) or e.code in ("too_large", "unsupported")
            raise WorkspaceArchiveWriteError(
                path=root,
                context=failures.context(e, **({"reason": "unsafe_or_invalid_tar"} if unsafe else {})),
                cause=e,
                retryable=False if unsafe else failures.retryable(e),
            ) from e

    async def _import(self, head: bytes, data: io.IOBase, *, owner: str = "") -> None:
        root = self._workspace_root_path()

        async def pieces() -> AsyncIterator[bytes]:
            piece = head
            while piece:
                yield piece
                piece = await take(root, data, MIB)

        early = list(self._early.files) if self._early is not None else []
        kept = sorted([p.as_posix() for p in self._workspace_resume_mount_skip_relpaths()] + early)
        await self._sandbox.files.tar_in(
            root.as_posix(),
            pieces(),
            exclude=early,
            atomic=True,
            clear=self._clearing,
            keep=kept if self._clearing else (),
            owner=owner,
            external_symlinks=self.state.options.external_symlinks,
        )

    async def _hydrate_natively(self, text: str) -> None:
        """A sandbox begins with a snapshot when it is made, so another one takes the place of this one."""
        try:
            snapshot = str(json.loads(text)["snapshot"])
        except (ValueError, KeyError, TypeError) as e:
            raise WorkspaceArchiveWriteError(
                path=self._workspace_root_path(),
                context={
                    "backend": "cloche",
                    "reason": "unsafe_or_invalid_tar",
                    "detail": "no snapshot is named",
                },
                retryable=False,
            ) from e
        try:
            await self._begin_anew(snapshot)
        except ClocheError as e:
            gone = isinstance(e, NotFound)
            raise WorkspaceArchiveWriteError(
                path=self._workspace_root_path(),
                context=failures.context(e, **({"reason": "snapshot_not_found"} if gone else {})),
                cause=e,
                retryable=failures.retryable(e),
            ) from e

    @abc.abstractmethod
    async def _begin_anew(self, snapshot: str) -> None:
        """Goes on in a sandbox that begins with a snapshot."""

    async def _clear_workspace_root_on_resume(self) -> None:
        """It is cleared with the archive's coming in, in one step."""
        mounts = self._workspace_resume_mount_skip_relpaths()
        self._clearing = not any(p in (Path(""), Path(".")) for p in mounts)

    async def _restore_snapshot_into_workspace_on_resume(self) -> None:
        try:
            await super()._restore_snapshot_into_workspace_on_resume()
        finally:
            self._clearing = False

    def _snapshot_fingerprint_version(self) -> str:
        return FINGERPRINT

    async def _compute_and_cache_snapshot_fingerprint(self, *, version: str | None = None) -> dict[str, str]:
        """Of the same archive that is then kept, so that nothing comes between the two."""
        if version not in (None, FINGERPRINT):
            raise ValueError(f"the fingerprint is another provider's: {version}")
        exported = await self._export()
        try:
            content = await asyncio.to_thread(digest, exported)
        except BaseException:
            exported.close()
            raise
        if self._persisting and not self.state.manifest.ephemeral_mount_targets():
            exported.seek(0)
            self._exported = exported
        else:
            exported.close()
        whole = hashlib.sha256(f"{content}\n{self._resume_manifest_digest()}\n".encode()).hexdigest()
        return {"fingerprint": whole, "version": FINGERPRINT}

    async def _delete_cached_snapshot_fingerprint_best_effort(self) -> None:
        """None is kept inside."""


def digest(archive: IO[bytes]) -> str:
    """Says what files an archive has: names, kinds, modes, owners, content; no times, and no order."""
    lines: list[str] = []
    contents: dict[str, str] = {}
    with tarfile.open(fileobj=archive, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
        for member in tar:
            name = posixpath.normpath(member.name)
            what = f"{member.type!r} {member.linkname!r}"
            if member.isreg():
                what = contents[name] = _hash_of(tar, member)
            elif member.islnk():
                # Which of its names a file has first is chance.
                what = contents[name] = contents.get(posixpath.normpath(member.linkname), what)
            lines.append(f"{name!r} {member.mode:o} {member.uid} {member.gid} {what}")
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "backslashreplace")).hexdigest()


def _hash_of(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    content = hashlib.sha256()
    if (file := tar.extractfile(member)) is not None:
        while piece := file.read(MIB):
            content.update(piece)
    return content.hexdigest()
