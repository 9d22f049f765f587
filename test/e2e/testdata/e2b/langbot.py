"""What LangBot does with its own backend for E2B, as it is. It prints "all done"."""

import asyncio
import logging
import os
import tempfile
from pathlib import Path

from langbot_plugin.box.e2b_backend import E2BSandboxBackend
from langbot_plugin.box.models import BoxExecutionStatus, BoxSpec


async def main() -> None:
    backend = E2BSandboxBackend(logging.getLogger("langbot"))
    backend.configure({})
    await backend.initialize()
    assert await backend.is_available()
    with tempfile.TemporaryDirectory() as host:
        Path(host, "given.txt").write_text("given\n")

        def spec(cmd: str, timeout: int = 30) -> BoxSpec:
            return BoxSpec(cmd=cmd, session_id="one", host_path=host, env={"X": "1"}, timeout_sec=timeout, read_only_rootfs=False)

        session = await backend.start_session(spec("true"))
        result = await backend.exec(session, spec("cat /workspace/given.txt; echo $X; pwd; echo made > made.txt; mkdir -p d; echo deep > d/f"))
        assert (result.status, result.exit_code, result.stdout) == (BoxExecutionStatus.COMPLETED, 0, "given\n1\n/home/user/workspace\n"), result
        assert Path(host, "made.txt").read_text() == "made\n" and Path(host, "d", "f").read_text() == "deep\n"
        slow = await backend.exec(session, spec("sleep 60", timeout=1))
        assert slow.status == BoxExecutionStatus.TIMED_OUT, slow
        assert await backend.is_session_alive(session)
        await backend.stop_session(session)
        assert not await backend.is_session_alive(session)


asyncio.run(main())
print("all done", flush=True)
# See client.py.
os._exit(0)
