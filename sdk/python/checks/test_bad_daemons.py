"""Daemons that are not there, refuse, break off or are something else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import cloche
from cloche.errors import DaemonSilent

PATIENCE = 60.0


class Stranger:
    """Answers each connection with the next of `answers`, whatever is asked, and hangs up. The last one
    is repeated."""

    def __init__(self, answers: list[bytes], tls: ssl.SSLContext | None = None) -> None:
        self.answers = answers
        self.tls = tls
        self.asked: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            try:
                self._answer(self.tls.wrap_socket(conn, server_side=True) if self.tls else conn)
            except OSError:
                conn.close()  # the client does not trust it, or has what it wants

    def _answer(self, conn: socket.socket) -> None:
        with conn:
            conn.settimeout(PATIENCE)
            head = b""
            while b"\r\n\r\n" not in head and (data := conn.recv(65536)):
                head += data
            size = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
            while (
                size and len(head) < head.index(b"\r\n\r\n") + 4 + int(size[1]) and (data := conn.recv(65536))
            ):
                head += data
            self.asked.append(head)
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            conn.sendall(answer)
            conn.shutdown(socket.SHUT_WR)
            while conn.recv(65536):
                pass


@contextmanager
def stranger(*answers: bytes) -> Iterator[tuple[cloche.SandboxClient, Stranger]]:
    s = Stranger(list(answers))
    client = cloche.SandboxClient(s.url, token="a-secret-token")
    try:
        yield client, s
    finally:
        client.close()
        s.listener.close()


def http(status: int, body: object, more: str = "") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (
        f"HTTP/1.1 {status} x\r\nContent-Length: {len(data)}\r\nConnection: close\r\n{more}\r\n".encode() + data
    )


def chunked(*pieces: bytes, whole: bool) -> bytes:
    head = b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces) + (b"0\r\n\r\n" if whole else b"")


SANDBOX = {"id": "sb-1", "name": "n", "state": "running", "cwd": "/workspace"}
PROCESS = {"exec_id": "p", "argv": ["x"], "state": "running", "running": True, "exit_code": None, "position": 0}


def entry(text: str, position: int, **more: object) -> bytes:
    e = {"exec_id": "p", "stream": "stdout", "offset": position, "position": position, "time": "", "data": text}
    return json.dumps({**e, **more}).encode() + b"\n"


@pytest.mark.parametrize("host", ["unix:///nowhere/at/all.sock", "tcp://127.0.0.1:1"])
def test_no_daemon(host: str) -> None:
    with pytest.raises(cloche.SandboxUnavailable, match=r"no daemon is listening.*cloche serve"):
        with cloche.SandboxClient(host):
            pass
    with pytest.raises(cloche.SandboxUnavailable):
        cloche.SandboxClient(host).run_python("print('on this machine')")


@pytest.mark.parametrize(
    "host", ["nonsense", "tcp://host", "ftp://h:1", "http://u:p@h:1", "http://h:1/v1", "unix://rel"]
)
def test_no_address(host: str) -> None:
    with pytest.raises(cloche.InvalidRequest):
        cloche.SandboxClient(host)


def test_a_token_is_one_word_and_never_shown() -> None:
    with pytest.raises(cloche.InvalidRequest) as e:
        cloche.SandboxClient("tcp://127.0.0.1:1", token="se\r\ncret")
    assert "cret" not in str(e.value)


def test_a_wrong_token() -> None:
    body = {"error": {"code": "unauthenticated", "message": "no"}}
    with stranger(http(401, body)) as (client, s):
        with pytest.raises(cloche.Unauthenticated) as e:
            client.list()
        assert "a-secret-token" not in repr(e.value) and b"Bearer a-secret-token" in s.asked[0]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (http(200, b"<html>"), cloche.ClocheError),
        (http(502, b"bad gateway"), cloche.SandboxUnavailable),
        (http(307, b"", "Location: /elsewhere\r\n"), cloche.ClocheError),
        (b"HTTP/1.1 200 x\r\nContent-Length: 100\r\n\r\n{", cloche.ConnectionBroken),
        (b"", cloche.ConnectionBroken),
        (b"\0\1\2 nonsense\r\n\r\n", cloche.ConnectionBroken),
    ],
)
def test_strangers(answer: bytes, kind: type[cloche.ClocheError]) -> None:
    with stranger(answer) as (client, s):
        with pytest.raises(kind):
            client.run_python("1")
        assert len(s.asked) == 1, "a run is never repeated"


def test_a_create_whose_answer_was_lost() -> None:
    """It is asked for once more with its key; when that fails too, what the key made is removed."""
    with stranger(b"", http(201, SANDBOX)) as (client, s):
        assert client.create(image="host").id == "sb-1"
        assert [a.split()[0] for a in s.asked] == [b"POST", b"POST"]
    with stranger(b"", b"", http(200, SANDBOX)) as (client, s):
        with pytest.raises(cloche.ConnectionBroken):
            client.create(image="host")
        assert s.asked[2].startswith(b"DELETE /v1/sandboxes?idempotency_key=py-")


def test_a_stream_that_is_cut() -> None:
    """It goes on at the byte where it was cut: nothing is lost or comes twice."""
    first = chunked(entry("one ", 0), entry("tw", 4)[:-20], whole=False)
    again = chunked(entry("ne two ", 1), b"\n", whole=False)
    last = chunked(entry("three", 8), entry("", 13, end="exited"), whole=True)
    answers = [http(200, SANDBOX), http(201, PROCESS), first, again, last]
    with stranger(*answers) as (client, s):
        p = client.get("sb-1").process("p")
        assert p.read() == "one two three"
        asked = [a.split()[1].decode() for a in s.asked[2:]]
        assert ["since=0" in asked[0], "since=4" in asked[1], "since=8" in asked[2]] == [True] * 3


def test_output_that_is_lost_is_said() -> None:
    log = chunked(entry("", 5, gap=5), entry("rest", 5), entry("", 9, end="exited"), whole=True)
    with stranger(http(200, SANDBOX), http(201, PROCESS), log) as (client, _):
        p = client.get("sb-1").process("p")
        with pytest.raises(cloche.OutputLost):
            p.read()
        assert [(c.gap, c.data) for c in p] == [(5, b""), (0, b"rest")]


def test_an_error_within_a_stream() -> None:
    body = json.dumps({"error": {"code": "sandbox_lost", "message": "it died"}}).encode() + b"\n"
    with stranger(http(200, SANDBOX), http(201, PROCESS), chunked(entry("x", 0), body, whole=True)) as (
        client,
        _,
    ):
        with pytest.raises(cloche.SandboxGone):
            client.get("sb-1").process("p").read()


def test_a_file_that_is_cut() -> None:
    cut: Callable[..., bytes] = lambda *p: chunked(*p, whole=False)  # noqa: E731
    with stranger(http(200, SANDBOX), cut(b"half")) as (client, s):
        sb = client.get("sb-1")
        with pytest.raises(cloche.ConnectionBroken):
            sb.files.read("f")
        with pytest.raises(cloche.ConnectionBroken):
            b"".join(sb.files.tar_out("d"))
        assert b"\r\nTE: \r\n" in s.asked[1] or b"\r\nte: \r\n" in s.asked[1].lower()


def test_local_starts_nothing_where_a_host_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOCHE_HOST", "tcp://127.0.0.1:1")
    with pytest.raises(cloche.SandboxUnavailable, match="no daemon is listening"):
        cloche.local(binary="/nowhere/cloche")


def test_local_without_a_binary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CLOCHE_HOST", raising=False)
    monkeypatch.delenv("CLOCHE_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(cloche.SandboxUnavailable, match="no cloche binary"):
        cloche.local(str(tmp_path / "home"))


@pytest.mark.skipif(os.name == "nt", reason="needs a shell script as a binary")
def test_local_with_a_daemon_that_fails(tmp_path: Path) -> None:
    fake = tmp_path / "cloche"
    fake.write_text("#!/bin/sh\necho it is broken >&2\nexit 4\n")
    fake.chmod(0o755)
    with pytest.raises(cloche.SandboxUnavailable, match=r"status 4.*it is broken"):
        cloche.local(str(tmp_path / "home"), binary=str(fake))


def wait_until(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def daemons_of(home: str) -> list[int]:
    """The processes of daemons for a home, those that are starting too."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if home.encode() in Path("/proc", pid, "cmdline").read_bytes().split(b"\0"):
                found.append(int(pid))
    return found


def listener_of(home: str) -> int:
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(f"{home}/cloche.sock")
        return int(struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def has_stopped(pid: int) -> bool:
    """Whether all threads of a process have stopped. The signal alone returns before that."""
    return all(
        task.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "T"
        for task in Path("/proc", str(pid), "task").iterdir()
    )


SILENCE = 2.0

# Some of each kind: what is short, what takes long, what waits for a program with and without a timeout.
CALLS: dict[str, Callable[[cloche.SandboxHandle, cloche.SandboxClient], object]] = {
    "get": lambda _, client: client.get("box"),
    "exec": lambda box, _: box.exec("sleep", ["1000"]),
    "exec with a timeout": lambda box, _: box.exec("sleep", ["1000"], timeout=900),
    "exec that ends with its caller": lambda box, _: box.exec("sleep", ["1000"], cancel_with_caller=True),
    "run": lambda _, client: client.run(["sleep", "1000"]),
    "create": lambda _, client: client.create(),
    "read": lambda box, _: box.files.read("/etc/passwd"),
    "write": lambda box, _: box.files.write("f", b"x" * (8 << 20)),
    "list": lambda _, client: client.list(),
    "request": lambda _, client: client.request("GET", "/v1/status"),
}


@pytest.mark.skipif(not os.environ.get("CLOCHE_BIN"), reason="needs the binary: set CLOCHE_BIN")
def test_a_daemon_that_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call waits longer than `silence` for a daemon that answers nothing, whatever it is for, and a command
    may take longer than that while the daemon answers."""
    monkeypatch.delenv("CLOCHE_HOST", raising=False)
    home = tempfile.mkdtemp(prefix="cl-")
    ended: dict[str, tuple[float, object]] = {}

    def note(name: str, begun: float, result: object) -> None:
        ended[name] = (time.monotonic() - begun, result)

    def wait_for(name: str, call: Callable[[], object]) -> None:
        begun = time.monotonic()
        try:
            note(name, begun, call())
        except Exception as e:
            note(name, begun, e)

    async def wait_without_thread(begun: float) -> None:
        async with cloche.AsyncSandboxClient(f"unix://{home}/cloche.sock", silence=SILENCE) as client:
            box = await client.get("box")
            running.set()
            try:
                note("async exec", begun, await box.exec("sleep", ["1000"]))
            except Exception as e:
                note("async exec", begun, e)

    try:
        cloche.local(home).close()
        pid = listener_of(home)
        client = cloche.SandboxClient(f"unix://{home}/cloche.sock", silence=SILENCE)
        box = client.create(name="box")
        assert box.exec("sleep", [str(2 * SILENCE)]).ok
        running = threading.Event()
        waits = {
            name: threading.Thread(target=wait_for, args=(name, lambda c=call: c(box, client)))
            for name, call in CALLS.items()
        }
        begun = time.monotonic()
        waits["async exec"] = threading.Thread(target=lambda: asyncio.run(wait_without_thread(begun)))
        long = ["exec", "exec with a timeout", "exec that ends with its caller", "async exec"]
        for name in long:
            waits[name].start()
        assert running.wait(PATIENCE)
        wait_until(lambda: sum(p["running"] for p in box.processes()) == len(long), "the commands do not run")
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: has_stopped(pid), "the daemon does not stop")
        try:
            for name in waits.keys() - set(long):
                waits[name].start()
            for t in waits.values():
                t.join(PATIENCE)
            for name in waits:
                took, e = ended.get(name, (PATIENCE, "nothing: it hangs"))
                print(f"{name}: {took:.2f} s")
                assert isinstance(e, DaemonSilent) and "has answered nothing for 2 seconds" in str(e), (name, e)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert client.get("box").exec("true").ok
        box.remove()
        client.close()
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not daemons_of(home), "the daemon goes on")
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.mark.skipif(not os.environ.get("CLOCHE_BIN"), reason="needs the binary: set CLOCHE_BIN")
@pytest.mark.parametrize("slow", [0, 1])
def test_local_leaves_no_second_daemon(slow: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that another was faster than is ended before its start returns, so that it does not take over
    when that one ends. `slow` is for how many seconds the second one waits before it begins."""
    monkeypatch.delenv("CLOCHE_HOST", raising=False)
    late = tmp_path / "late"
    late.write_text(f'#!/bin/sh\nsleep {slow}\nexec "$CLOCHE_BIN" "$@"\n')
    late.chmod(0o755)
    home = tempfile.mkdtemp(prefix="cl-")
    try:
        clients: list[cloche.SandboxClient] = []
        binaries = ["", str(late), ""]
        threads = [
            threading.Thread(target=lambda b=b: clients.append(cloche.local(home, binary=b))) for b in binaries
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join(2 * PATIENCE)
        assert len(clients) == 3 and all(c.version() for c in clients)
        assert daemons_of(home) == [listener_of(home)]
        for c in clients:
            c.close()
        os.kill(listener_of(home), signal.SIGTERM)
        wait_until(lambda: not daemons_of(home), "a daemon goes on")
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.mark.skipif(not os.environ.get("CLOCHE_BIN"), reason="needs the binary: set CLOCHE_BIN")
def test_local_that_is_cancelled_leaves_no_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CLOCHE_HOST", raising=False)
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\nsleep 1000\n")
    hangs.chmod(0o755)
    home = tempfile.mkdtemp(prefix="cl-")

    async def within() -> None:
        start = asyncio.create_task(cloche.local_async(home, binary=str(hangs)))
        while not await asyncio.to_thread(daemons_of, home):
            assert not start.done()
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start

    asyncio.run(asyncio.wait_for(within(), PATIENCE))
    shutil.rmtree(home)
    wait_until(lambda: not daemons_of(home), "it goes on")


@pytest.mark.skipif(not os.environ.get("CLOCHE_BIN"), reason="needs the binary: set CLOCHE_BIN")
def test_a_daemon_ends_with_its_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLOCHE_HOST", raising=False)
    home = tempfile.mkdtemp(prefix="cl-")
    cloche.local(home).close()
    assert daemons_of(home)
    os.rename(home, home + "-moved")
    wait_until(lambda: not daemons_of(home), "the daemon outlives its home")
    assert not os.path.exists(home)
    shutil.rmtree(home + "-moved")


@pytest.mark.skipif(not os.environ.get("CLOCHE_BIN"), reason="needs the binary: set CLOCHE_BIN")
def test_local_starts_a_daemon_where_none_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLOCHE_HOST", raising=False)
    home = tempfile.mkdtemp(prefix="cl-")  # a socket's path is short
    try:
        clients: list[cloche.SandboxClient] = []
        # Both at once: one of the two daemons finds that there is another.
        threads = [threading.Thread(target=lambda: clients.append(cloche.local(home))) for _ in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(2 * PATIENCE)
        assert len(clients) == 2 and all(c.version() for c in clients)
        for c in clients:
            c.close()
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(f"{home}/cloche.sock")
            pid, _, _ = struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + PATIENCE
        while os.path.exists(f"{home}/cloche.sock"):
            assert time.monotonic() < end, "the daemon does not end"
            time.sleep(0.05)
    finally:
        shutil.rmtree(home, ignore_errors=True)
