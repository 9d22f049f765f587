"""Processes that outlive their callers, and their output as it comes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, cast

from cloche import _address
from cloche._async import primitives
from cloche._async.transport import AsyncTransport
from cloche.errors import ClocheError, ConnectionBroken, OutputLost, SandboxUnavailable
from cloche.spec import Chunk, Exit, from_bytes, to_ms, to_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloche import wire

    _Test = Callable[[wire.Process], bool]

RECONNECT_SECONDS = 30.0
"""For so long a connection that broke is made again and again, before it is an error."""

_ASK_MS = 30_000


async def follow(
    transport: AsyncTransport,
    path: str,
    query: dict[str, str | int | bool | None],
    *,
    resume: bool,
    endless: bool = True,
) -> AsyncGenerator[Chunk, None]:
    """The entries of a log, until the daemon says that there are no more; with `endless` false, until
    its answer ends. With `resume` a connection that breaks is made again, and goes on at the next byte."""
    since, failing, pause = query.get("since"), 0.0, 0.1
    position = since if isinstance(since, int) and since >= 0 else 0
    while True:
        try:
            lines = transport.lines(path, query=query, silence=_address.FOLLOW_SECONDS)
            async with contextlib.aclosing(lines) as lines:
                async for line in lines:
                    failing, pause = 0.0, 0.1
                    entry = cast("wire.LogEntry", _address.decode_json(line))
                    if "error" in entry:
                        raise _address.refused(line, 500)
                    if entry.get("end"):
                        return
                    chunk = Chunk(
                        entry["stream"],
                        from_bytes(entry["data"]),
                        entry["position"],
                        entry.get("gap", 0),
                        entry["exec_id"],
                    )
                    if resume and not chunk.gap and chunk.position < position:
                        chunk = Chunk(
                            chunk.stream, chunk.data[position - chunk.position :], position, 0, chunk.exec_id
                        )
                        if not chunk.data:
                            continue
                    position = chunk.position + len(chunk.data)
                    yield chunk
            if not endless:
                return
            raise ConnectionBroken("unavailable", f"{transport.host} broke its answer off", retryable=True)
        except SandboxUnavailable as e:
            now = time.monotonic()
            failing = failing or now
            if not resume or not e.retryable or now - failing > RECONNECT_SECONDS:
                raise
        query = {**query, "since": position}
        await primitives.sleep(pause)
        pause = min(2 * pause, 3.0)


class AsyncProcess:
    """A process in a sandbox. It goes on whatever becomes of this object, unless it is used in a
    ``with``, whose end kills it with all that it started."""

    def __init__(self, transport: AsyncTransport, ref: str, record: wire.Process) -> None:
        self._t, self._ref = transport, ref
        self.record = record
        """What was last heard of it."""
        self._stdin = record.get("stdin_offset", 0)

    @property
    def id(self) -> str:
        """Names it in its sandbox."""
        return self.record["exec_id"]

    def _path(self, *rest: str) -> str:
        return _address.sandbox_path(self._ref, "processes", self.id, *rest)

    async def output(self, since: int = 0) -> AsyncGenerator[Chunk, None]:
        """Its output in the order in which it was written, from the byte `since` on (of both streams
        together) until it has ended. A connection that breaks is made again, and nothing is repeated
        or left out; a chunk with a `gap` stands for what is no longer kept."""
        path = _address.sandbox_path(self._ref, "logs")
        query: dict[str, str | int | bool | None] = {"exec_id": self.id, "follow": True, "since": since}
        async with contextlib.aclosing(follow(self._t, path, query, resume=True)) as chunks:
            async for chunk in chunks:
                yield chunk

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self.output()

    async def read(self) -> str:
        """All of its output as text, when it has ended. `cloche.OutputLost` where some is no longer kept."""
        data = bytearray()
        async for chunk in self.output():
            if chunk.gap:
                raise OutputLost("too_large", f"{chunk.gap} bytes of the output are no longer kept")
            data += chunk.data
        return to_text(bytes(data))

    async def refresh(self) -> wire.Process:
        """Asks what became of it."""
        self.record = await self._t.json("GET", self._path(), repeat=True)
        return self.record

    async def wait(self, timeout: float | None = None) -> Exit | None:
        """How it ended. None when it has not after `timeout` seconds."""
        await self._wait({}, timeout, lambda r: not r["running"])
        return None if self.record["running"] else self.exit

    async def wait_ready(self, timeout: float | None = None) -> bool:
        """Whether it is ready, as its `ready` says, within `timeout` seconds."""
        await self._wait({"ready": True}, timeout, lambda r: not r["running"] or r["state"] == "ready")
        return self.record["state"] == "ready"

    async def _wait(self, body: wire.WaitRequest, timeout: float | None, done: _Test) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = (
                _ASK_MS
                if end is None
                else max(1, min(_ASK_MS, to_ms(max(0.0, end - time.monotonic()), "timeout")))
            )
            body["timeout_ms"] = left
            silence = left / 1000 + _address.FOLLOW_SECONDS
            self.record = await self._t.json("POST", self._path("wait"), body, repeat=True, silence=silence)
            if done(self.record) or (end is not None and time.monotonic() >= end):
                return

    @property
    def exit(self) -> Exit:
        """How it ended, as far as `record` knows."""
        r = self.record
        return Exit(
            exit_code=r["exit_code"],
            signal=r.get("signal", ""),
            timed_out=r.get("timed_out", False),
            oom=r.get("oom", False),
            reason=r.get("reason", ""),
        )

    async def write(self, data: str | bytes) -> None:
        """Gives it input, for which it was started with `open_stdin`. It arrives once, even where the
        connection breaks. One caller at a time."""
        await self._feed(data.encode() if isinstance(data, str) else bytes(data), end=False)

    async def close_stdin(self) -> None:
        """Ends its input."""
        await self._feed(b"", end=True)

    async def _feed(self, data: bytes, *, end: bool) -> None:
        query = {"offset": self._stdin, "end": end or None}
        kind = "application/octet-stream"
        try:
            answer = await self._t.call("POST", self._path("stdin"), query=query, content=data, kind=kind)
        except ConnectionBroken:
            answer = await self._t.call("POST", self._path("stdin"), query=query, content=data, kind=kind)
        ack = cast("wire.StdinAck", _address.decode_json(answer))
        self._stdin = ack["offset"]

    async def signal(self, name: str = "TERM", *, scope: str = "") -> None:
        """Sends a signal, such as ``INT``, to its group; with scope ``tree`` to all that it started."""
        await self._t.json(
            "POST", self._path("signal"), {"signal": name, **({"scope": scope} if scope else {})}
        )

    async def kill(self) -> None:
        """Kills it with all that it started. One that has ended is no error."""
        await kill(self._t, self._ref, self.id)

    async def resize(self, rows: int, cols: int) -> None:
        """Changes the size of its terminal."""
        await self._t.json("POST", self._path("resize"), {"rows": rows, "cols": cols}, repeat=True)

    async def remove(self) -> None:
        """Kills it where it runs, and removes its record and its output."""
        await self._t.json("DELETE", self._path())

    async def __aenter__(self) -> AsyncProcess:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.record["running"]:
            with contextlib.suppress(ClocheError) if error is not None else contextlib.nullcontext():
                await primitives.finish(self.kill())


async def kill(transport: AsyncTransport, ref: str, exec_id: str) -> None:
    """Kills what an exec or a process started. One that has ended, or is not there, is no error."""
    path = _address.sandbox_path(ref, "processes", exec_id, "signal")
    try:
        await transport.json("POST", path, {"signal": "KILL", "scope": "tree"})
    except ClocheError as e:
        if e.code not in ("not_found", "wrong_state", "sandbox_lost"):
            raise
