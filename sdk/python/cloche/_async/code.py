"""Code contexts of a sandbox."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, cast

from cloche import _address
from cloche._async.transport import AsyncTransport
from cloche.errors import ConnectionBroken
from cloche.spec import CodeResult, to_ms

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from cloche import wire
    from cloche.spec import CodeOptions


class AsyncCodeContexts:
    """Runs code in contexts: Jupyter kernels, which keep their variables from one run to the next. The image
    must have ``ipykernel``; without it a run is a `cloche.ClocheError` with the code ``unsupported``."""

    def __init__(self, transport: AsyncTransport, sandbox: str) -> None:
        self._t = transport
        self._sandbox = sandbox

    def _path(self, *parts: str) -> str:
        return _address.sandbox_path(self._sandbox, *parts)

    async def stream(
        self, code: str, *, timeout: float | None = None, **options: Unpack[CodeOptions]
    ) -> AsyncGenerator[wire.CodeEvent, None]:
        """The events of a run, as they happen. The last has the type ``end``. Closing the generator
        interrupts the run. See `run`."""
        request: wire.CodeRequest = {"code": code}
        if timeout is not None:
            request["timeout_ms"] = to_ms(timeout, "timeout")
        if context := options.get("context"):
            request["context"] = context
        if language := options.get("language"):
            request["language"] = language
        if env := options.get("env"):
            request["env"] = dict(env)
        lines = self._t.lines(self._path("code"), body=request, silence=_address.FOLLOW_SECONDS)
        async with contextlib.aclosing(lines) as lines:
            async for line in lines:
                event = cast("wire.CodeEvent", _address.decode_json(line))
                if "error" in event:
                    raise _address.refused(line, 500)
                yield event
                if event["type"] == "end":
                    return
        raise ConnectionBroken("unavailable", f"{self._t.host} broke its answer off", retryable=True)

    async def run(
        self, code: str, *, timeout: float | None = None, **options: Unpack[CodeOptions]
    ) -> CodeResult:
        """Runs code and returns what it printed, displayed and raised. Without a `context` it runs in the
        default context of `language` (Python), which the first run creates. `env` is set for this run only.
        After `timeout` seconds the code is interrupted, and the result has an error with the name
        ``TimeoutError``. An exception of the code is in the result, and not raised."""
        out = CodeResult()
        events = self.stream(code, timeout=timeout, **options)
        async with contextlib.aclosing(events) as events:
            async for event in events:
                out.add(event)
        return out

    async def create(
        self,
        *,
        id: str = "",
        language: str = "",
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        user: str = "",
    ) -> wire.CodeContext:
        """Creates a context and returns when its kernel is ready."""
        spec: wire.CodeContextSpec = {}
        if id:
            spec["id"] = id
        if language:
            spec["language"] = language
        if cwd:
            spec["cwd"] = cwd
        if env:
            spec["env"] = dict(env)
        if user:
            spec["user"] = user
        made: wire.CodeContext = await self._t.json("POST", self._path("contexts"), spec)
        return made

    async def contexts(self) -> list[wire.CodeContext]:
        """The contexts of the sandbox, in the order of their start."""
        answer: wire.CodeContextList = await self._t.json("GET", self._path("contexts"), repeat=True)
        return answer["contexts"] or []

    async def restart(self, context: str) -> None:
        """Restarts the kernel of a context, which keeps its ID and loses its variables."""
        await self._t.json("POST", self._path("contexts", context, "restart"))

    async def remove(self, context: str) -> None:
        """Ends a context."""
        await self._t.json("DELETE", self._path("contexts", context))
