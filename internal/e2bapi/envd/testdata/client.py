"""Uses E2B's Python clients as a program does, and fails at the first difference."""

import asyncio
import os
import time

from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    FileType,
    InvalidArgumentException,
    PtySize,
    Sandbox,
    SandboxException,
    TimeoutException,
)

DIR = os.environ["TEST_DIR"]


def raises(kind, fn, *args, **kw):
    try:
        fn(*args, **kw)
    except kind as e:
        return e
    raise AssertionError(f"{fn} did not raise {kind}")


def eventually(holds):
    for _ in range(100):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("it does not come about")


def sync():
    sbx = Sandbox.create()
    r = sbx.commands.run("echo hi; echo err >&2")
    assert (r.stdout, r.stderr, r.exit_code) == ("hi\n", "err\n", 0), r
    assert sbx.commands.run("pwd; echo $GLOBAL $BOTH", envs={"BOTH": "call"}).stdout == f"{DIR}\nsandbox call\n"
    e = raises(CommandExitException, sbx.commands.run, "echo out; exit 7")
    assert e.exit_code == 7 and e.stdout == "out\n", e
    raises(TimeoutException, sbx.commands.run, "sleep 30", timeout=0.7)
    raises(AuthenticationException, sbx.commands.run, "true", user="nobody-here")

    h = sbx.commands.run("cat", background=True, stdin=True)
    sbx.commands.send_stdin(h.pid, "Hello ")
    sbx.commands.send_stdin(h.pid, "Wörld")
    sbx.commands.close_stdin(h.pid)
    assert h.wait().stdout == "Hello Wörld"
    h = sbx.commands.run("sleep 100", background=True)
    # The one that timed out is killed when its call ends, and is gone a moment later.
    eventually(lambda: [p.pid for p in sbx.commands.list()] == [h.pid])
    assert sbx.commands.connect(h.pid).pid == h.pid
    assert sbx.commands.kill(h.pid) is True
    e = raises(CommandExitException, h.wait)
    assert e.exit_code == -1, e
    assert sbx.commands.kill(h.pid) is False

    out = b""

    def collect(data):
        nonlocal out
        out += data

    pty = sbx.pty.create(PtySize(rows=24, cols=80), envs={"ABC": "123"})
    sbx.pty.send_stdin(pty.pid, b"echo $ABC; tput cols; exit\n")
    assert pty.wait(on_pty=collect).exit_code == 0
    assert b"123" in out and b"80" in out, out

    w = sbx.files.write("a/b.txt", "hello", metadata=None)
    assert (w.path, w.name) == (f"{DIR}/a/b.txt", "b.txt"), w
    assert sbx.files.read("a/b.txt") == "hello"
    assert bytes(sbx.files.read("a/b.txt", format="bytes")) == b"hello"
    assert b"".join(sbx.files.read("a/b.txt", format="stream")) == b"hello"
    sbx.files.write("z", "abc" * 100000, gzip=True)
    assert sbx.files.read("z", gzip=True) == "abc" * 100000
    many = sbx.files.write_files([{"path": "m/1", "data": "one"}, {"path": "m/2", "data": b"two"}])
    assert [f.path for f in many] == [f"{DIR}/m/1", f"{DIR}/m/2"], many
    raises(FileNotFoundException, sbx.files.read, "nope")
    assert sbx.files.make_dir("d/e") is True
    assert sbx.files.make_dir("d/e") is False
    sbx.files.write("d/e/f", "1")
    assert [x.path for x in sbx.files.list("d", depth=2)] == [f"{DIR}/d/e", f"{DIR}/d/e/f"]
    raises(InvalidArgumentException, sbx.files.list, "d", depth=0)
    raises((InvalidArgumentException, SandboxException), sbx.files.list, "z")
    assert sbx.files.rename("d/e/f", "d/g").path == f"{DIR}/d/g"
    raises(FileNotFoundException, sbx.files.rename, "nope", "x")
    info = sbx.files.get_info("d/g")
    assert info.type == FileType.FILE and info.mode == 0o644 and info.permissions == "-rw-r--r--" and info.size == 1, info
    assert info.symlink_target is None, info
    assert sbx.files.exists("d") is True
    sbx.files.remove("d")
    sbx.files.remove("d")
    assert sbx.files.exists("d") is False
    assert sbx.is_running() is True


async def later():
    sbx = await AsyncSandbox.create()
    r = await sbx.commands.run("echo hi")
    assert r.stdout == "hi\n", r
    seen = []
    h = await sbx.commands.run("for i in 1 2 3; do echo $i; sleep 0.1; done", background=True, on_stdout=seen.append)
    assert (await h.wait()).exit_code == 0
    assert "".join(seen) == "1\n2\n3\n", seen
    await sbx.files.write("async.txt", "x")
    assert await sbx.files.read("async.txt") == "x"
    results = await asyncio.gather(*(sbx.commands.run(f"echo {i}") for i in range(20)))
    assert [r.stdout for r in results] == [f"{i}\n" for i in range(20)]


begin = time.monotonic()
sync()
print("sync", time.monotonic() - begin)
asyncio.run(later())
print("async", time.monotonic() - begin)
print("all done", flush=True)
# The threads of the SDK's HTTP library (pyqwest 0.12 in Python 3.11) can abort the interpreter while it
# is torn down, after the last check.
os._exit(0)
