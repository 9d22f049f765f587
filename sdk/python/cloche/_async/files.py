"""Files of a sandbox."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Literal, cast

from cloche import _address
from cloche._async import primitives
from cloche._async.transport import AsyncTransport
from cloche.errors import NotFound, invalid
from cloche.spec import Access, FileInfo

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from cloche import wire


class AsyncFiles:
    """The files of one sandbox, confined by the daemon. A relative path begins where the sandbox's
    commands do. Paths are text, with surrogates for bytes that are not UTF-8 as `os.fsdecode` makes them.

    `user`, `within` and `read_within` of an operation are those of `cloche.spec.Access`.

    A path that is not there is a `cloche.NotFound`.
    """

    def __init__(self, transport: AsyncTransport, ref: str, cwd: str) -> None:
        self._t, self._ref, self._cwd = transport, ref, cwd

    def _path(self, *rest: str) -> str:
        return _address.sandbox_path(self._ref, *rest)

    def _at(self, path: str) -> str:
        return posixpath.join(self._cwd, path)

    def _query(self, path: str, access: Access, **more: str | int | bool | None) -> _address.Query:
        where: dict[str, str | list[str] | None] = {}
        for name, value in access.items():
            if name == "user":
                where[name] = str(value) or None
            elif name not in ("within", "read_within"):
                raise TypeError(f"files know no {name!r}")
            elif isinstance(value, str):
                raise invalid(name, f"{name} is a list of directories, and was one text")
            else:
                where[name] = [self._at(d) for d in cast("Sequence[str]", value)]
        return {"path": self._at(path), **where, **more}

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, **access: Unpack[Access]
    ) -> bytes:
        """The content, or `length` bytes of it from `offset` on. It comes whole or is an error."""
        query = self._query(path, access, offset=offset or None, length=length)
        return await self._t.call("GET", self._path("files"), query=query)

    async def read_text(
        self, path: str, *, encoding: str = "utf-8", errors: str = "strict", **access: Unpack[Access]
    ) -> str:
        """The content as text."""
        return (await self.read(path, **access)).decode(encoding, errors)

    async def read_chunks(self, path: str, **access: Unpack[Access]) -> AsyncGenerator[bytes, None]:
        """The content piece by piece, for what should not be in memory as a whole."""
        query = self._query(path, access)
        async with self._t.stream("GET", self._path("files"), query=query) as answer:
            async for data in answer.aiter_raw(_address.CHUNK):
                yield data

    async def write(
        self, path: str, data: primitives.Source, *, mode: int | None = None, **access: Unpack[Access]
    ) -> FileInfo:
        """Writes a file: it is there whole, or as it was. Missing directories above it are made. `mode`
        holds the permission bits of a new one. What a `user` may change and not replace is written in place."""
        answer = await self._t.call(
            "PUT",
            self._path("files"),
            query=self._query(path, access, mode=None if mode is None else f"{mode:04o}"),
            content=primitives.content(data),
            kind="application/octet-stream",
        )
        return FileInfo.of(_address.decode_json(answer))  # type: ignore[arg-type]

    async def stat(self, path: str, *, follow: bool = False, **access: Unpack[Access]) -> FileInfo:
        """One file; of a symlink, the link itself, unless `follow` is set."""
        query = self._query(path, access, follow=follow or None)
        return FileInfo.of(await self._t.json("GET", self._path("files", "stat"), query=query, repeat=True))

    async def exists(self, path: str, **access: Unpack[Access]) -> bool:
        """Whether something is there."""
        try:
            await self.stat(path, **access)
        except NotFound as e:
            if e.terminal_reason:
                raise
            return False
        return True

    async def list(self, path: str = ".", **access: Unpack[Access]) -> list[FileInfo]:
        """A directory, sorted by name."""
        out: list[FileInfo] = []
        cursor = ""
        while True:
            query = self._query(path, access, cursor=cursor or None)
            page: wire.FileList = await self._t.json(
                "GET", self._path("files", "list"), query=query, repeat=True
            )
            out += map(FileInfo.of, page["files"] or [])
            after = page.get("next", "")
            if not after or after == cursor:
                return out
            cursor = after

    async def watch(
        self, path: str = ".", *, recursive: bool = False, entries: bool = False, **access: Unpack[Access]
    ) -> AsyncGenerator[wire.FileChange, None]:
        """The changes in a directory, as they happen, until it is removed. The first has the kind `ready`:
        each change after it is reported. `recursive` includes the directories below, and `entries` adds
        the file (`info`) to its changes. `overflow` is a change that says that others were lost.

        A connection that breaks is a `cloche.ConnectionBroken`: changes may have been missed."""
        query = self._query(path, access, recursive=recursive or None, entries=entries or None)
        lines = self._t.lines(self._path("files", "watch"), query=query, silence=_address.FOLLOW_SECONDS)
        async with contextlib.aclosing(lines) as lines:
            async for line in lines:
                change = cast("wire.FileChange", _address.decode_json(line))
                if "error" in change:
                    raise _address.refused(line, 500)
                yield change

    async def mkdir(
        self, path: str, *, mode: int | None = None, parents: bool = True, **access: Unpack[Access]
    ) -> None:
        """Makes a directory and its parents. One that exists is no error, unless `parents` is false."""
        query = self._query(
            path, access, mode=None if mode is None else f"{mode:04o}", parents=None if parents else False
        )
        await self._t.json("POST", self._path("files", "mkdir"), query=query, repeat=parents)

    async def move(self, path: str, to: str, **access: Unpack[Access]) -> None:
        """Renames a file or directory."""
        await self._t.json(
            "POST", self._path("files", "move"), query=self._query(path, access, to=self._at(to))
        )

    async def remove(
        self, path: str, *, recursive: bool = False, keep_dirs: bool = False, **access: Unpack[Access]
    ) -> None:
        """Removes a file or directory, with all that is in it where that is said. With `keep_dirs` a
        directory is an error."""
        query = self._query(path, access, recursive=recursive, keep_dirs=keep_dirs or None)
        await self._t.json("DELETE", self._path("files"), query=query)

    async def tar_out(
        self, path: str = ".", *, exclude: Sequence[str] = (), hard_links: Literal["keep", "copy"] = "keep"
    ) -> AsyncGenerator[bytes, None]:
        """A file or directory as a tar archive, piece by piece. One that cannot be finished is an error.
        Absolute symlinks into the directory become relative. With `hard_links` ``copy`` a file is
        written again for each further name that it has, for readers that refuse hard links."""
        query: dict[str, str | Sequence[str] | None] = {
            "path": self._at(path),
            "exclude": exclude,
            "hard_links": None if hard_links == "keep" else hard_links,
        }
        async with self._t.stream("GET", self._path("tar"), query=query, accept="application/x-tar") as answer:
            async for data in answer.aiter_raw(_address.CHUNK):
                yield data

    async def tar_in(
        self,
        path: str,
        archive: primitives.Source,
        *,
        exclude: Sequence[str] = (),
        owner: str = "",
        atomic: bool = False,
        clear: bool = False,
        keep: Sequence[str] = (),
        external_symlinks: Literal["keep", "drop", "reject"] = "keep",
    ) -> wire.TarReport:
        """Unpacks a tar archive into a directory, which is created if it is missing. With `atomic`, all
        of it is put in place or none. `clear` removes the earlier content, except for `keep`."""
        if isinstance(archive, str):
            raise invalid("archive", "an archive is bytes, and was text")
        query: dict[str, str | bool | Sequence[str] | None] = {
            "path": self._at(path),
            "exclude": exclude,
            "owner": owner or None,
            "atomic": atomic or None,
            "clear": clear or None,
            "keep": keep,
            "external_symlinks": None if external_symlinks == "keep" else external_symlinks,
        }
        data = await self._t.call(
            "PUT", self._path("tar"), query=query, content=primitives.content(archive), kind="application/x-tar"
        )
        return _address.decode_json(data)  # type: ignore[return-value]
