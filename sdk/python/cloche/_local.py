"""The daemon of this machine, started if none runs."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from typing import IO

from cloche._address import CONNECT_SECONDS
from cloche.errors import SandboxUnavailable
from cloche.spec import default_home, default_host, to_text

START_SECONDS = 60.0
"""How long a daemon may take until it answers."""

END_SECONDS = 30.0
"""How long one that is not needed may take until it ends, before it is killed."""


class Start:
    """A daemon on its way. When it listens, it outlives this process, as one that was started by hand does.
    Before that it belongs to this start, and ends with it."""

    def __init__(self, binary: str = "", home: str = "") -> None:
        self.host = f"unix://{os.path.abspath(home)}/cloche.sock" if home else default_host()
        self._home = os.path.abspath(home) if home else default_home()
        self._binary = binary
        self._child: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._end = time.monotonic() + START_SECONDS
        self._may = bool(home) or not os.environ.get("CLOCHE_HOST")

    def again(self, why: SandboxUnavailable) -> bool:
        """After a failure to reach it: starts it the first time. False when there is nothing to wait for,
        and `why` is the error."""
        if why.code != "unavailable" or not self._may:
            return False
        if self._child is not None and time.monotonic() > self._end:
            return False
        if self._child is None or self._lost_the_race():
            # Who was faster may have been ended meanwhile. Each try takes a second where it was not.
            self._begin(why)
        elif (code := self._child.poll()) is not None:
            raise SandboxUnavailable(
                "unavailable", f"the daemon ended with status {code} as it was started", hint=self._said()
            )
        return True

    def _begin(self, why: SandboxUnavailable) -> None:
        binary = self._binary or os.environ.get("CLOCHE_BIN") or shutil.which("cloche")
        if not binary:
            raise SandboxUnavailable(
                "unavailable",
                f"no daemon is listening at {self.host}, and there is no cloche binary to start one",
                hint="put cloche into PATH, or name it in CLOCHE_BIN, or a daemon that runs in CLOCHE_HOST",
            ) from why
        if self._log is None:
            self._log = tempfile.TemporaryFile()
        self._log.seek(0)
        self._log.truncate()
        env = {k: v for k, v in os.environ.items() if k not in ("CLOCHE_HOST", "CLOCHE_TOKEN")}
        try:
            self._child = subprocess.Popen(
                [binary, "serve", "--home", self._home],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
                env=env,
            )
        except OSError as e:
            raise SandboxUnavailable("unavailable", f"start {binary}: {e.strerror}") from e

    def _lost_the_race(self) -> bool:
        """Whether another daemon had the home already, so that the one of this start ended."""
        return self._child is not None and self._child.poll() is not None and "running already" in self._said()

    def _said(self) -> str:
        if self._log is None:
            return ""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 2000))
        return to_text(self._log.read(2000)).strip()

    def close(self) -> None:
        """Leaves the daemon alone when it listens. Otherwise it ends it, and waits for that: one that
        another daemon was faster than would take over unnoticed when that one ends."""
        try:
            if self._child is not None and self._child.poll() is None and not self._listens(self._child.pid):
                self._end_child(self._child)
        finally:
            if self._log is not None:
                self._log.close()
            if self._child is not None:
                # It is meant to outlive us, and nothing is to be said about that.
                self._child.returncode = self._child.returncode or 0

    @staticmethod
    def _end_child(child: subprocess.Popen[bytes]) -> None:
        try:
            os.killpg(child.pid, signal.SIGTERM)  # `binary` may be a script that starts another
            child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def _listens(self, session: int) -> bool:
        """Whether a process of the session listens at the socket. One that cannot be asked counts as one."""
        try:
            with socket.socket(socket.AF_UNIX) as s:
                s.settimeout(CONNECT_SECONDS)
                s.connect(self.host[len("unix://") :])
                if sys.platform == "linux":
                    pid = struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
                elif sys.platform == "darwin":
                    local, peer_pid = 0, 2  # SOL_LOCAL and LOCAL_PEERPID of sys/un.h
                    pid = struct.unpack("i", s.getsockopt(local, peer_pid, 4))[0]
                else:
                    return True
                return os.getsid(pid) == session
        except OSError:
            return False
