"""The daemon of this machine, started where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from typing import IO

from cloche.errors import SandboxUnavailable
from cloche.spec import default_home, default_host, to_text

START_SECONDS = 60.0
"""How long a daemon may take until it answers."""


class Start:
    """A daemon on its way. It outlives this process, as one that was started by hand does."""

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
        if self._child is None:
            binary = self._binary or os.environ.get("CLOCHE_BIN") or shutil.which("cloche")
            if not binary:
                raise SandboxUnavailable(
                    "unavailable",
                    f"no daemon is listening at {self.host}, and there is no cloche binary to start one",
                    hint="put cloche into PATH, or name it in CLOCHE_BIN, or a daemon that runs in CLOCHE_HOST",
                ) from why
            self._log = tempfile.TemporaryFile()
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
        elif time.monotonic() > self._end:
            return False
        elif (code := self._child.poll()) is not None and not self._lost_the_race():
            raise SandboxUnavailable(
                "unavailable", f"the daemon ended with status {code} as it was started", hint=self._said()
            )
        return True

    def _lost_the_race(self) -> bool:
        """Somebody else's daemon may be on its way, for the same home."""
        return time.monotonic() < self._end - START_SECONDS + 10 and "running already" in self._said()

    def _said(self) -> str:
        if self._log is None:
            return ""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 2000))
        return to_text(self._log.read(2000)).strip()

    def close(self) -> None:
        """Leaves it alone."""
        if self._log is not None:
            self._log.close()
        if self._child is not None:
            # It is meant to outlive us, and nothing is to be said about that.
            self._child.returncode = self._child.returncode or 0
