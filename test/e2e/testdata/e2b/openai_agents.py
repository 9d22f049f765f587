"""What the OpenAI Agents SDK does with its own provider for E2B, as it is. It prints "all done"."""

import asyncio
import io
import os
from pathlib import Path

from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from agents.sandbox import Manifest
from agents.sandbox.entries import File


async def main() -> None:
    client = E2BSandboxClient()
    manifest = Manifest(root="/home/user/project", entries={"given.txt": File(content=b"given\n")})
    session = await client.create(manifest=manifest, options=E2BSandboxClientOptions(sandbox_type="e2b", timeout=120, envs={"X": "1"}))
    try:
        await session.start()
        result = await session.exec("cat given.txt; echo $X; pwd")
        assert (result.exit_code, result.stdout) == (0, b"given\n1\n/home/user/project\n"), result
        failed = await session.exec("echo no >&2; exit 3")
        assert (failed.exit_code, failed.stderr) == (3, b"no\n"), failed
        await session.write(Path("made.bin"), io.BytesIO(bytes(range(256))))
        assert (await session.read(Path("made.bin"))).read() == bytes(range(256))
        await session.mkdir(Path("d/e"), parents=True)
        assert (await session.exec("wc -c made.bin; ls -d d/e")).stdout == b"256 made.bin\nd/e\n"
        assert await session.running()
        archive = (await session.persist_workspace()).read()
        assert b"made.bin" in archive
        await session.exec("rm -r made.bin d")
        await session.hydrate_workspace(io.BytesIO(archive))
        assert (await session.exec("wc -c made.bin")).stdout == b"256 made.bin\n"
        state = session.state
    finally:
        await session.stop()
    again = await client.resume(state)
    assert (await again.exec("wc -c made.bin")).stdout == b"256 made.bin\n"
    await again.shutdown()
    await client.delete(again)


asyncio.run(main())
print("all done", flush=True)
# See client.py.
os._exit(0)
