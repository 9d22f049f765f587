"""Files of a sandbox."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Literal

from cloche import _address
from cloche._async import primitives
from cloche._async.transport import AsyncTransport
from cloche.errors import NotFound, invalid
from cloche.spec import FileInfo

if TYPE_CHECKING:
    from cloche import wire


class AsyncFiles:
    """The files of one sandbox, confined by the daemon. A relative path begins where the sandbox's
    commands do. Paths are text, with surrogates for bytes that are not UTF-8 as `os.fsdecode` makes them.

    A path that is not there is a `cloche.NotFound`.
    """

    def __init__(self, transport: AsyncTransport, ref: str, cwd: str) -> None:
        self._t, self._ref, self._cwd = transport, ref, cwd

    def _path(self, *rest: str) -> str:
        return _address.sandbox_path(self._ref, *rest)

    def _at(self, path: str) -> str:
        return posixpath.join(self._cwd, path)

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """The content, or `length` bytes of it from `offset` on. It comes whole or is an error."""
        query = {"path": self._at(path), "offset": offset or None, "length": length}
        return await self._t.call("GET", self._path("files"), query=query)

    async def read_text(self, path: str, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The content as text."""
        return (await self.read(path)).decode(encoding, errors)

    async def read_chunks(self, path: str) -> AsyncGenerator[bytes, None]:
        """The content piece by piece, for what should not be in memory as a whole."""
        async with self._t.stream("GET", self._path("files"), query={"path": self._at(path)}) as answer:
            async for data in answer.aiter_raw(_address.CHUNK):
                yield data

    async def write(self, path: str, data: primitives.Source, *, mode: int | None = None) -> FileInfo:
        """Writes a file: it is there whole, or as it was. Its directory must exist. `mode` holds the
        permission bits of a new one."""
        query = {"path": self._at(path), "mode": None if mode is None else f"{mode:04o}"}
        answer = await self._t.call(
            "PUT",
            self._path("files"),
            query=query,
            content=primitives.content(data),
            kind="application/octet-stream",
        )
        return FileInfo.of(_address.decode_json(answer))  # type: ignore[arg-type]

    async def stat(self, path: str) -> FileInfo:
        """One file; of a symlink, the link itself."""
        return FileInfo.of(
            await self._t.json("GET", self._path("files", "stat"), query={"path": self._at(path)}, repeat=True)
        )

    async def exists(self, path: str) -> bool:
        """Whether something is there."""
        try:
            await self.stat(path)
        except NotFound as e:
            if e.terminal_reason:
                raise
            return False
        return True

    async def list(self, path: str = ".") -> list[FileInfo]:
        """A directory, sorted by name."""
        out: list[FileInfo] = []
        cursor = ""
        while True:
            query = {"path": self._at(path), "cursor": cursor or None}
            page: wire.FileList = await self._t.json(
                "GET", self._path("files", "list"), query=query, repeat=True
            )
            out += map(FileInfo.of, page["files"] or [])
            after = page.get("next", "")
            if not after or after == cursor:
                return out
            cursor = after

    async def mkdir(self, path: str, *, mode: int | None = None) -> None:
        """Makes a directory and its parents. One that exists is no error."""
        query = {"path": self._at(path), "mode": None if mode is None else f"{mode:04o}"}
        await self._t.json("POST", self._path("files", "mkdir"), query=query, repeat=True)

    async def move(self, path: str, to: str) -> None:
        """Renames a file or directory."""
        await self._t.json(
            "POST", self._path("files", "move"), query={"path": self._at(path), "to": self._at(to)}
        )

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Removes a file or directory, with all that is in it where that is said."""
        await self._t.json(
            "DELETE", self._path("files"), query={"path": self._at(path), "recursive": recursive}
        )

    async def tar_out(self, path: str = ".", *, exclude: Sequence[str] = ()) -> AsyncGenerator[bytes, None]:
        """A file or directory as a tar archive, piece by piece. One that cannot be finished is an error."""
        query = {"path": self._at(path), "exclude": exclude}
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
        """Unpacks a tar archive into a directory, which is made where it is missing. With `atomic` all
        of it is put in place or none; `clear` removes what was there before, but for `keep`."""
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
