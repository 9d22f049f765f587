"""What adapters do alike: a sandbox is waited for, kept while its owner lives, and given back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import cloche


async def create(
    client: cloche.AsyncSandboxClient, spec: cloche.SandboxSpec, labels: Mapping[str, str]
) -> cloche.AsyncSandboxHandle:
    """A sandbox. Without free capacity it waits, since others give theirs back."""
    while True:
        try:
            return await client.create(spec, labels=labels)
        except cloche.NoCapacity as e:
            if not e.retryable:
                raise
            await asyncio.sleep(e.retry_after or 1)


async def beat(handle: cloche.AsyncSandboxHandle, idle_timeout: float) -> None:
    """Keeps an unused sandbox alive. An owner that is killed stops renewing it."""
    while True:
        await asyncio.sleep(idle_timeout / 4)
        try:
            await handle.heartbeat()
        except cloche.NotFound:
            return
        except cloche.ClocheError:
            continue  # the next call on the sandbox raises it
