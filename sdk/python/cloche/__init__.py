"""Run code that an AI agent wrote in Cloche sandboxes.

    import cloche

    with cloche.local() as client:
        print(client.run_python("print(6 * 7)").stdout)

`SandboxClient` makes sandboxes and finds them again, `SandboxHandle` is one of them; `AsyncSandboxClient`
and `AsyncSandboxHandle` are the same for asyncio, and `cloche.wire` has the types of the API.
Times are seconds, exceptions are `ClocheError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloche._sync.client import SandboxClient
from cloche._sync.code import CodeContexts
from cloche._sync.endpoints import Endpoints
from cloche._sync.files import Files
from cloche._sync.handle import SandboxHandle
from cloche._sync.local import local
from cloche._sync.process import Process
from cloche.errors import (
    ClocheError,
    CommandNotStarted,
    ConnectionBroken,
    InvalidRequest,
    NoCapacity,
    NotFound,
    OutputLost,
    PolicyDenied,
    SandboxGone,
    SandboxUnavailable,
    Unauthenticated,
)
from cloche.spec import (
    DEFAULT_IMAGE,
    Chunk,
    CodeError,
    CodeOptions,
    CodeResult,
    ExecOptions,
    ExecResult,
    Exit,
    FileInfo,
    SandboxFields,
    SandboxSpec,
)

if TYPE_CHECKING:
    from cloche._async.client import AsyncSandboxClient
    from cloche._async.code import AsyncCodeContexts
    from cloche._async.endpoints import AsyncEndpoints
    from cloche._async.files import AsyncFiles
    from cloche._async.handle import AsyncSandboxHandle
    from cloche._async.local import local_async
    from cloche._async.process import AsyncProcess
    from cloche._forward import AsyncForward, Forward

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_IMAGE",
    "AsyncCodeContexts",
    "AsyncEndpoints",
    "AsyncFiles",
    "AsyncForward",
    "AsyncProcess",
    "AsyncSandboxClient",
    "AsyncSandboxHandle",
    "Chunk",
    "ClocheError",
    "CodeContexts",
    "CodeError",
    "CodeOptions",
    "CodeResult",
    "CommandNotStarted",
    "ConnectionBroken",
    "Endpoints",
    "ExecOptions",
    "ExecResult",
    "Exit",
    "FileInfo",
    "Files",
    "Forward",
    "InvalidRequest",
    "NoCapacity",
    "NotFound",
    "OutputLost",
    "PolicyDenied",
    "Process",
    "SandboxClient",
    "SandboxFields",
    "SandboxGone",
    "SandboxHandle",
    "SandboxSpec",
    "SandboxUnavailable",
    "Unauthenticated",
    "local",
    "local_async",
]

# What needs asyncio is imported by those who use it.
_LATER = {
    "AsyncCodeContexts": "_async.code",
    "AsyncEndpoints": "_async.endpoints",
    "AsyncFiles": "_async.files",
    "AsyncForward": "_forward",
    "AsyncProcess": "_async.process",
    "AsyncSandboxClient": "_async.client",
    "AsyncSandboxHandle": "_async.handle",
    "Forward": "_forward",
    "local_async": "_async.local",
}


def __getattr__(name: str) -> Any:
    if (module := _LATER.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"cloche.{module}"), name)
    globals()[name] = value
    return value
