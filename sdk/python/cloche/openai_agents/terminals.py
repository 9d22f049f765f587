"""The part of a session that has processes to come back to, with a terminal or without."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from agents.sandbox import ExecTransportError
from agents.sandbox.session.pty_types import (
    PTY_PROCESSES_MAX,
    PtyExecUpdate,
    allocate_pty_process_id,
    clamp_pty_yield_time_ms,
    process_id_to_prune_from_meta,
    resolve_pty_write_yield_time_ms,
    truncate_text_by_tokens,
)
from agents.sandbox.types import User

from cloche._async.process import AsyncProcess
from cloche.errors import ClocheError, CommandNotStarted
from cloche.openai_agents import failures
from cloche.openai_agents.archives import ArchiveSession
from cloche.openai_agents.running import not_started, transport_error
from cloche.spec import MIB

_ROWS, _COLS = 24, 80
_HELD = 4 * MIB


@dataclass
class _Live:
    """One process that the SDK knows by a number. What it writes is taken as it comes, up to a bound; beyond
    that the daemon keeps it."""

    process: AsyncProcess
    argv: list[str]
    tty: bool
    used: float = 0.0
    chunks: deque[bytes] = field(default_factory=deque)
    held: int = 0
    done: bool = False
    exit_code: int | None = None
    failure: ClocheError | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    room: asyncio.Event = field(default_factory=asyncio.Event)
    input: asyncio.Lock = field(default_factory=asyncio.Lock)
    task: asyncio.Task[None] | None = None
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    async def follow(self) -> None:
        try:
            async with contextlib.aclosing(self.process.output()) as output:
                async for chunk in output:
                    if chunk.gap:
                        self._add(f"\n[{chunk.gap} bytes are no longer kept]\n".encode())
                    self._add(chunk.data)
                    while self.held > _HELD:
                        self.room.clear()
                        await self.room.wait()
            end = await self.process.wait()
            self.exit_code = failures.exit_code(end) if end is not None else None
        except ClocheError as e:
            self.failure = e
        finally:
            self.done = True
            self.news.set()

    def _add(self, data: bytes) -> None:
        self.chunks.append(data)
        self.held += len(data)
        self.news.set()

    def take(self) -> bytes:
        out = b"".join(self.chunks)
        self.chunks.clear()
        self.held = 0
        self.room.set()
        return out

    async def collect(self, seconds: float) -> bytes:
        """What it writes until its end, or until the time is up."""
        end = time.monotonic() + seconds
        out = bytearray()
        try:
            while True:
                out += self.take()
                left = end - time.monotonic()
                if self.done or left <= 0 or len(out) > _HELD:
                    return bytes(out)
                self.news.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.news.wait(), left)
        except asyncio.CancelledError:
            self.chunks.appendleft(bytes(out))
            self.held += len(out)
            raise

    async def kill(self) -> None:
        if self.task is not None:
            self.task.cancel()
        with contextlib.suppress(ClocheError):
            await self.process.kill()


class TerminalSession(ArchiveSession):
    """Processes by number."""

    _live: dict[int, _Live] | None = None

    def supports_pty(self) -> bool:
        """Whether commands may go on after an answer."""
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Starts a command, and tells what it wrote until its end or until the time is up."""
        argv, name = self._split(self._prepare_exec_command(*command, shell=shell, user=user))
        try:
            given = await self._given(name)
            process = await self._sandbox.start(
                argv[0],
                argv[1:],
                self.state.options.exec_timeout or 0.0,
                process={"tty": True, "rows": _ROWS, "cols": _COLS} if tty else {},
                **given,
            )
        except CommandNotStarted as e:
            result = not_started(e)
            return PtyExecUpdate(None, result.stderr, result.exit_code, None)
        except ClocheError as e:
            raise transport_error(argv, e) from e
        live = _Live(process, argv, tty, used=time.monotonic())
        live.task = asyncio.create_task(live.follow())
        table = self._table()
        number = allocate_pty_process_id(set(table))
        table[number] = live
        if (old := self._superfluous()) is not None:
            await old.kill()
        wait = 10.0 if yield_time_s is None else yield_time_s
        return await self._update(number, live, clamp_pty_yield_time_ms(int(wait * 1000)), max_output_tokens)

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Writes to a terminal, and tells what came of it. Without anything to write it only looks."""
        live = self._resolve_pty_session_entry(pty_processes=self._table(), session_id=session_id)
        live.used = time.monotonic()
        if chars:
            if not live.tty:
                raise RuntimeError("stdin is not available for this process")
            try:
                async with live.input:
                    await live.process.write(chars)
            except ClocheError as e:
                # One that has ended meanwhile takes nothing more; how it ended comes below.
                if not live.done and e.code not in ("wrong_state", "not_found", "sandbox_lost"):
                    raise transport_error(live.argv, e) from e
        wait = 0.25 if yield_time_s is None else yield_time_s
        milliseconds = resolve_pty_write_yield_time_ms(yield_time_ms=int(wait * 1000), input_empty=not chars)
        return await self._update(session_id, live, milliseconds, max_output_tokens)

    async def pty_terminate_all(self) -> None:
        """Ends all of them."""
        table, self._live = self._table(), {}
        await asyncio.gather(*(live.kill() for live in table.values() if not live.done))

    def _table(self) -> dict[int, _Live]:
        if self._live is None:
            self._live = {}
        return self._live

    def _superfluous(self) -> _Live | None:
        table = self._table()
        if len(table) <= PTY_PROCESSES_MAX:
            return None
        number = process_id_to_prune_from_meta([(n, live.used, live.done) for n, live in table.items()])
        return table.pop(number, None) if number is not None else None

    async def _update(
        self, number: int, live: _Live, milliseconds: int, max_output_tokens: int | None
    ) -> PtyExecUpdate:
        output = await live.collect(milliseconds / 1000)
        ended = live.done and not live.chunks
        text, count = truncate_text_by_tokens(live.decoder.decode(output, final=ended), max_output_tokens)
        live.used = time.monotonic()
        if ended:
            self._table().pop(number, None)
            if live.failure is not None:
                e = live.failure
                raise ExecTransportError(
                    command=live.argv,
                    context=failures.context(e, output=text),
                    cause=e,
                    message=str(e),
                    retryable=failures.retryable(e),
                ) from e
        return PtyExecUpdate(
            process_id=None if ended else number,
            output=text.encode(errors="replace"),
            exit_code=(1 if live.exit_code is None else live.exit_code) if ended else None,
            original_token_count=count,
        )
