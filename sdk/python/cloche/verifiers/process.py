"""Programs in a sandbox: started once whatever the network does, their output exact or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal as signals
import uuid
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

import aiohttp
from verifiers.v1.errors import SandboxError
from verifiers.v1.runtimes import RuntimeProcess
from verifiers.v1.utils.aio import run_shielded

from cloche.verifiers.api import Api, ApiError

OUTPUT_BYTES = 64 << 20
"""How much of each stream a collected run may write."""

WAITING_BYTES = 4 << 20
"""How much output of a live process waits for its reader, of each stream."""

_FRAME_HEAD = 9  # a byte for the stream, eight for the position
_STDOUT = 1
_STDIN_FRAME = 128 << 10
_TRIES = 4
_PAUSE_SECONDS = 0.25

Stream = Literal["stdout", "stderr"]


class Ended(Exception):
    """A program that could not be executed: `exit_code` is a shell's for that, 126 or 127."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code


async def start(
    api: Api,
    sandbox: str,
    argv: list[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    user: str | None,
    open_stdin: bool = False,
) -> str:
    """Starts a managed process, and tells its id. The id is ours, so that a start whose answer was lost
    can be asked for again: the program is executed once."""
    exec_id = f"vf-{uuid.uuid4().hex}"
    spec: dict[str, Any] = {"exec_id": exec_id, "argv": argv, "env": dict(env), "cwd": cwd}
    spec["on_full"] = "block"
    if user is not None:
        spec["user"] = user
    if open_stdin:
        spec["open_stdin"] = True
    for attempt in range(_TRIES):
        try:
            await api.json("POST", f"/v1/sandboxes/{sandbox}/processes", spec)
            return exec_id
        except ApiError as e:
            if e.code == "command_not_found":
                raise Ended(127, e.message) from e
            if e.code == "not_executable":
                raise Ended(126, e.message) from e
            if e.code != "unavailable" or attempt == _TRIES - 1:
                raise SandboxError(f"start {argv[0]!r}: {e}") from e
        await asyncio.sleep(_PAUSE_SECONDS * 2**attempt)
    raise AssertionError("unreachable")


async def kill(api: Api, sandbox: str, exec_id: str, signal: str = "KILL") -> None:
    """Sends a signal to everything that the process started. One that has ended is no error."""
    try:
        await api.json(
            "POST",
            f"/v1/sandboxes/{sandbox}/processes/{exec_id}/signal",
            {"signal": signal, "scope": "tree"},
        )
    except ApiError as e:
        if e.code not in ("not_found", "wrong_state"):
            raise SandboxError(f"send {signal}: {e}") from e


def exit_code(result: Mapping[str, Any]) -> int:
    """The status with which a shell would report a result. SandboxError for a process whose
    end is not known."""
    code, signal = result.get("exit_code"), result.get("signal")
    if result.get("timed_out"):
        return 124
    if isinstance(code, int):
        return code
    if isinstance(signal, str) and signal:
        number = getattr(signals, f"SIG{signal}", None)
        return 128 + int(number) if number is not None else 125
    if result.get("sandbox_lost"):
        raise SandboxError("the sandbox was lost while a program ran in it")
    raise SandboxError(f"a program ended in an unknown way: {result.get('reason') or 'no reason is given'}")


class Attachment:
    """The output of one process from its first byte on, over as many connections as it takes."""

    def __init__(self, api: Api, sandbox: str, exec_id: str, *, write: bool = False) -> None:
        self._api, self._path = api, f"/v1/sandboxes/{sandbox}/processes/{exec_id}/attach"
        self._write = write
        self._position = 0
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self.exit: Mapping[str, Any] | None = None
        """The result, once the output has been read to its end."""

    async def open(self) -> None:
        """Makes the first connection, so that input can be written before output is read."""
        if self._socket is None:
            self._socket = await self._connect()

    async def _connect(self) -> aiohttp.ClientWebSocketResponse:
        try:
            socket = await self._api.stream(self._path)
        except ApiError as e:
            raise SandboxError(f"attach: {e}") from e
        try:
            await socket.send_json({"attach": {"since": self._position, "write": self._write}})
            first = await socket.receive()
            if first.type is not aiohttp.WSMsgType.TEXT:
                raise ConnectionResetError("the stream ended before it began")
            message = json.loads(first.data)
            if "error" in message:
                raise SandboxError(f"attach: {ApiError.of(message)}")
            return socket
        except BaseException:
            await socket.close()
            raise

    async def frames(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """Output in the order in which it was written, until the process has ended. Output that is no
        longer kept is a SandboxError, never a hole."""
        failures = 0
        while True:
            try:
                await self.open()
                assert self._socket is not None
                async for frame in self._read(self._socket):
                    failures = 0
                    yield frame
                if self.exit is not None:
                    return
                raise ConnectionResetError("the stream broke")
            except (aiohttp.ClientError, OSError) as e:
                failures += 1
                await self.close()
                if failures == _TRIES:
                    raise SandboxError(f"the output of a program is out of reach: {type(e).__name__}") from e
                await asyncio.sleep(_PAUSE_SECONDS * 2**failures)

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> AsyncIterator[tuple[Stream, bytes]]:
        async for message in socket:
            if message.type is aiohttp.WSMsgType.BINARY:
                head, data = message.data[:_FRAME_HEAD], message.data[_FRAME_HEAD:]
                if len(head) < _FRAME_HEAD:
                    raise SandboxError("malformed output")
                self._position = int.from_bytes(head[1:], "big") + len(data)
                yield ("stdout" if head[0] == _STDOUT else "stderr"), data
            elif message.type is aiohttp.WSMsgType.TEXT:
                told = json.loads(message.data)
                if "gap" in told:
                    raise SandboxError(
                        f"{told['gap'].get('bytes')} bytes of output are no longer kept: "
                        "let the program write that much to a file"
                    )
                if "error" in told:
                    raise SandboxError(str(ApiError.of(told)))
                if "exit" in told:
                    self.exit = told["exit"]
                    return

    async def send(self, data: bytes) -> None:
        """Writes input. It waits while the process takes none."""
        if self._socket is None or self._socket.closed:
            raise SandboxError("the input of the program is closed")
        try:
            for at in range(0, len(data), _STDIN_FRAME):
                await self._socket.send_bytes(data[at : at + _STDIN_FRAME])
        except (aiohttp.ClientError, OSError) as e:
            raise SandboxError(f"write input: {type(e).__name__}") from e

    async def close(self) -> None:
        """Ends the connection; the process is neither held up nor ended by it."""
        socket, self._socket = self._socket, None
        if socket is not None:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                await socket.close()


class _Pipe:
    """One stream of a live process: bytes with a bound, for one reader."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._changed = asyncio.Condition()
        self._end: BaseException | None = None
        self._ended = False

    async def put(self, data: bytes, *, wait: bool) -> None:
        """Adds bytes. Over the bound it waits for the reader, or drops the oldest bytes."""
        async with self._changed:
            while wait and self._size >= WAITING_BYTES:
                await self._changed.wait()
            self._chunks.append(data)
            self._size += len(data)
            while not wait and self._size > WAITING_BYTES and len(self._chunks) > 1:
                self._size -= len(self._chunks.popleft())
            self._changed.notify_all()

    async def end(self, error: BaseException | None) -> None:
        async with self._changed:
            self._ended, self._end = True, error
            self._changed.notify_all()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        async with self._changed:
            while not self._chunks and not self._ended:
                await self._changed.wait()
            if self._chunks:
                data = self._chunks.popleft()
                self._size -= len(data)
                self._changed.notify_all()
                return data
            if self._end is not None:
                raise self._end
            raise StopAsyncIteration


class ClocheProcess(RuntimeProcess):
    """A live process. A reader of `stdout` that stops holds the program up; of `stderr`, which many never
    read, the newest `WAITING_BYTES` are kept."""

    def __init__(self, api: Api, sandbox: str, exec_id: str) -> None:
        self._api, self._sandbox, self._exec_id = api, sandbox, exec_id
        self._attachment = Attachment(api, sandbox, exec_id, write=True)
        self._out, self._err = _Pipe(), _Pipe()
        self.stdout, self.stderr = self._out, self._err
        self._done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # A process whose end no task awaits is no error of asyncio's.
        self._done.add_done_callback(lambda f: f.cancelled() or f.exception())
        self._pump: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Attaches. On an error the process has been killed."""
        try:
            await self._attachment.open()
        except BaseException:
            with contextlib.suppress(SandboxError):
                await kill(self._api, self._sandbox, self._exec_id)
            raise
        self._pump = asyncio.create_task(self._read())

    async def _read(self) -> None:
        error: BaseException | None = None
        try:
            async for stream, data in self._attachment.frames():
                if stream == "stdout":
                    await self._out.put(data, wait=True)
                else:
                    await self._err.put(data, wait=False)
            assert self._attachment.exit is not None
            self._done.set_result(exit_code(self._attachment.exit))
        except BaseException as e:
            error = SandboxError("the process was left") if isinstance(e, asyncio.CancelledError) else e
            if not self._done.done():
                self._done.set_exception(error)
            if isinstance(e, asyncio.CancelledError):
                raise
        finally:
            await self._out.end(error)
            await self._err.end(error)
            await self._attachment.close()

    async def write(self, data: bytes) -> None:
        if self._done.done():
            raise SandboxError("the program has ended and takes no input")
        await self._attachment.send(data)

    async def wait(self) -> int:
        return await asyncio.shield(self._done)

    async def poll(self) -> int | None:
        return self._done.result() if self._done.done() else None

    async def terminate(self) -> None:
        await self._signal("TERM")

    async def kill(self) -> None:
        await self._signal("KILL")

    async def _signal(self, signal: str) -> None:
        if not self._done.done():
            await kill(self._api, self._sandbox, self._exec_id, signal)

    async def leave(self) -> None:
        """Stops reading, when the sandbox is about to go."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)


async def collect(
    api: Api, sandbox: str, exec_id: str, *, stdin: bytes | None = None, tail: bool = False
) -> tuple[int, bytes, bytes]:
    """Waits for a process: its exit code and both streams. With `tail` the newest `OUTPUT_BYTES` of each
    are kept; without, more than that is a SandboxError. A cancelled call leaves no
    process behind."""
    out: dict[Stream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
    attachment = Attachment(api, sandbox, exec_id)
    writer: asyncio.Task[None] | None = None
    try:
        await attachment.open()
        if stdin is not None:
            writer = asyncio.create_task(_feed(api, sandbox, exec_id, stdin))
        async for stream, data in attachment.frames():
            kept = out[stream]
            kept += data
            if len(kept) > OUTPUT_BYTES:
                if not tail:
                    raise SandboxError(
                        f"a program wrote more than {OUTPUT_BYTES >> 20} MiB to its {stream}: "
                        "let it write that much to a file"
                    )
                del kept[: len(kept) - OUTPUT_BYTES]
        assert attachment.exit is not None
        return exit_code(attachment.exit), bytes(out["stdout"]), bytes(out["stderr"])
    except BaseException:
        if attachment.exit is None:
            with contextlib.suppress(SandboxError):
                await run_shielded(kill(api, sandbox, exec_id))
        raise
    finally:
        if writer is not None:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
        await attachment.close()


async def _feed(api: Api, sandbox: str, exec_id: str, stdin: bytes) -> None:
    # A program that ends without reading its input is no error of the input's.
    with contextlib.suppress(ApiError):
        await api.call(
            "POST",
            f"/v1/sandboxes/{sandbox}/processes/{exec_id}/stdin",
            query={"offset": "0", "end": "true"},
            data=stdin,
        )
