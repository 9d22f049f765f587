"""The daemon of this machine."""

from __future__ import annotations

from cloche._async import primitives
from cloche._async.client import AsyncSandboxClient
from cloche.errors import SandboxUnavailable


async def local_async(home: str = "", *, binary: str = "") -> AsyncSandboxClient:
    """A client of this user's daemon, which is started where none runs: ``cloche serve`` of `binary`, else
    of ``CLOCHE_BIN``, else of PATH. With ``CLOCHE_HOST`` set it is that daemon, and none is started, unless
    `home` names the directory of one.

    A daemon that was started goes on after this process, and keeps sandboxes that were not removed. It ends
    when its home is removed, and when this call fails or is cancelled before it listens.
    `cloche.SandboxUnavailable` when none can be had.
    """
    from cloche._local import Start  # which needs more than the rest

    start = Start(binary, home)
    client = AsyncSandboxClient(start.host)
    try:
        while True:
            try:
                await client.version()
                return client
            except SandboxUnavailable as e:
                if not start.again(e):
                    raise
            await primitives.sleep(0.05)
    except BaseException:
        await client.aclose()
        raise
    finally:
        await primitives.finish(primitives.aside(start.close))
