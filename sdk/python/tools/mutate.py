"""Which changes of the client no test notices.

python3 tools/mutate.py        makes each change in a copy, and runs `checks` there
python3 tools/mutate.py WORD   only those whose old text or file has the word

It fails when a change goes unnoticed, or its old text is not there exactly once. It needs no daemon.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent

CHANGES = [
    ("_address.py", 'quote(p, safe="")', "p"),
    ("_address.py", 'if part in ("", ".", ".."):', "if False:"),
    ("_address.py", 'if any(c in token for c in "\\r\\n\\0 ") or not token.isascii():', "if False:"),
    ("_address.py", "if number == errno.EACCES:", "if False:"),
    ("_address.py", "if len(self._rest) > MAX_LINE:", "if False:"),
    ("_address.py", "        return bool(self._rest)\n", "        return False\n"),
    ("_address.py", "whole[0] = bytes(self._rest) + whole[0]", "whole[0] = whole[0]"),
    ("_address.py", "            self._rest.clear()\n", ""),
    ("_address.py", '"@" in parts.netloc or ', ""),
    ("_async/transport.py", "verify=self._verify if", "verify=False if"),
    ("_async/transport.py", 'headers["Authorization"] = f"Bearer {self._token}"', "pass"),
    ("_async/transport.py", "follow_redirects=False", "follow_redirects=True"),
    ("_async/transport.py", "self._pid != os.getpid()", "False"),
    ("_async/transport.py", "if answer.status_code >= 300:", "if answer.status_code >= 400:"),
    ("_async/transport.py", "if not repeat or isinstance(e, DaemonSilent):", "if isinstance(e, DaemonSilent):"),
    ("_async/transport.py", "        if lines.cut:\n", "        if False:\n"),
    ("_async/transport.py", "if len(data) > _address.MAX_ERROR:", "if False:"),
    ("_async/transport.py", "pulse, self._pulse = self._pulse, None", "pulse = None"),
    ("_async/process.py", "            position = chunk.position + len(chunk.data)\n", ""),
    ("_async/process.py", "if resume and not chunk.gap and chunk.position < position:", "if False:"),
    ("_async/process.py", "or now - failing > RECONNECT_SECONDS", ""),
    ("_async/process.py", "if not resume or not e.retryable", "if not e.retryable"),
    ("_async/process.py", "            if chunk.gap:\n", "            if False:\n"),
    ("_async/process.py", 'self._stdin = ack["offset"]', "pass"),
    ("_async/process.py", 'self._stdin = record.get("stdin_offset", 0)', "self._stdin = 0"),
    ("_async/process.py", '"end": end or None', '"end": None'),
    ("_async/process.py", 'if e.code not in ("not_found", "wrong_state", "sandbox_lost"):', "if False:"),
    ("_async/process.py", '{"signal": "KILL", "scope": "tree"}', '{"signal": "KILL"}'),
    ("_async/process.py", 'if self.record["running"]:\n', "if False:\n"),
    ("_async/process.py", "or (end is not None and time.monotonic() >= end)", ""),
    ("_async/files.py", "cursor=cursor or None", "cursor=None"),
    ("_async/files.py", "if not after or after == cursor:", "if not after:"),
    ("_async/files.py", "if e.terminal_reason:", "if False:"),
    ("_async/client.py", '"cursor": cursor or None', '"cursor": None'),
    ("_async/client.py", "if own and (", "if False and ("),
    ("_async/client.py", '"POST", "/v1/run", request)', '"POST", "/v1/run", request, repeat=True)'),
    ("_async/handle.py", 'self.info = {**self.info, "state": "deleted"}', "raise"),
    ("_async/handle.py", "            if error is None:\n                raise\n", "            pass\n"),
    ("_address.py", 'if answer.get("exec_id") != exec_id:', "if False:"),
    ("_async/handle.py", 'self._path("exec"), request, repeat=True', 'self._path("exec"), request'),
    ("_local.py", 'if why.code != "unavailable" or not self._may:', 'if why.code != "unavailable":'),
]  # fmt: skip
"""A file below cloche, what is there, and what is put in its place."""


def noticed(file: str, old: str, new: str) -> bool:
    """Whether a test fails with the change."""
    with tempfile.TemporaryDirectory() as at:
        return noticed_in(Path(at), file, old, new)


def noticed_in(at: Path, file: str, old: str, new: str) -> bool:
    """The same with a copy in the directory `at`."""
    package = at / "cloche"
    shutil.copytree(HERE / "cloche", package)
    for name in ("checks", "tools"):
        shutil.copytree(HERE / name, at / name)
    target = package / file
    text = target.read_text()
    if text.count(old) != 1:
        raise SystemExit(f"{file}: {old!r} is there {text.count(old)} times, want once: mend CHANGES")
    target.write_text(text.replace(old, new))
    subprocess.run([sys.executable, str(at / "tools" / "unasync.py")], check=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith("CLOCHE_")}
    env["PYTHONPATH"] = os.pathsep.join([str(at), *filter(None, [env.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "checks"],
            cwd=at,
            env=env,
            capture_output=True,
            timeout=120,
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout.decode()}")
    return done.returncode == 1


def main() -> int:
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [c for c in CHANGES if word in c[0] or word in c[1]]
    left = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (file, old, new), seen in zip(chosen, pool.map(lambda c: noticed(*c), chosen), strict=True):
            if not seen:
                left += 1
                print(f"not noticed: {file}: {old!r} -> {new!r}", flush=True)
    print(f"{len(chosen) - left} of {len(chosen)} changes of the Python client were noticed")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
