"""The daemon of this machine."""

from __future__ import annotations

from cloche._async import primitives
from cloche._async.client import AsyncSandboxClient
from cloche.errors import SandboxUnavailable


async def local_async(home: str = "", *, binary: str = "") -> AsyncSandboxClient:
    """Returns a client of this user's daemon, and starts the daemon if none is running: ``cloche serve``
    of `binary`, else of ``CLOCHE_BIN``, else of PATH. With ``CLOCHE_HOST`` set it uses that daemon and
    starts none, unless `home` names the directory of one.

    A daemon that was started keeps running after this process, with the sandboxes that were not removed.
    It ends when its home directory is removed, and when this call fails or is cancelled before the daemon
    listens. Raises `cloche.SandboxUnavailable` if no daemon can be used.
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
