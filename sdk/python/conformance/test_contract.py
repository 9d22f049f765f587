"""The contract of a sandbox client: what agents may rely on, with whatever daemon."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import socket
import tarfile
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

import cloche
from cloche import wire

from .conftest import IMAGE

Make = Callable[..., cloche.SandboxHandle]
PATIENCE = 60.0
"""Seconds for what must happen at all."""


def test_run_python(client: cloche.SandboxClient, mark: str) -> None:
    code = "import sys; print(6 * 7); print('no', file=sys.stderr); sys.exit(3)"
    r = client.run_python(code, image=IMAGE, labels={"test": mark})
    assert (r.stdout, r.stderr, r.output, r.exit_code, r.ok) == ("42\n", "no\n", "42\nno\n", 3, False)
    assert client.run_python("pass", image=IMAGE).ok
    assert client.list(labels={"test": mark}) == []


def test_run_shell_with_a_timeout(client: cloche.SandboxClient, mark: str) -> None:
    r = client.run_shell("echo so far; sleep 1000", image=IMAGE, timeout=2, labels={"test": mark})
    assert r.timed_out and r.stdout == "so far\n" and not r.ok
    assert client.list(labels={"test": mark}) == []


def test_run_has_what_a_spec_and_options_say(client: cloche.SandboxClient) -> None:
    spec = cloche.SandboxSpec(image=IMAGE, env={"A": "1"}, files={"/workspace/f": b"\xff"})
    r = client.run(["sh", "-c", 'cat f - && echo "$A$B"'], spec, exec={"stdin": "in\n", "env": {"B": "2"}})
    assert r.stdout_bytes == b"\xffin\n12\n"


def test_a_spec_without_an_image_needs_no_registry(client: cloche.SandboxClient, mark: str) -> None:
    """The daemon chooses its image, as for the command line and the Go client."""
    assert "image" not in cloche.SandboxSpec().to_wire()
    assert client.run_python("print('here')", pull="never").stdout == "here\n"
    with client.create(labels={"test": mark}) as made, client.create(image="host") as host:
        assert made.info["image"] == host.info["image"]


def test_an_image_that_is_not_here_names_the_alias(client: cloche.SandboxClient) -> None:
    with pytest.raises(cloche.ClocheError) as e:
        client.create(image="nowhere.invalid/none:1", pull="never")
    # Where the operator says which images there are, that comes first.
    assert isinstance(e.value, cloche.PolicyDenied) or "image_aliases" in str(e.value)


def test_spec_is_granted(make: Make) -> None:
    sb = make(
        memory_mib=256, cpus=0.5, env={"A": "b c"}, labels={"team": "x"}, name="", files={"/workspace/x": "y"}
    )
    try:
        assert sb.info["limits"]["memory_bytes"] == 256 << 20 and sb.info["limits"]["cpus"] == 0.5
        assert sb.info["labels"]["team"] == "x" and sb.info["network"] == "none"
        assert sb.exec("sh", ["-c", 'echo "$A"; cat x']).stdout == "b c\ny"
    finally:
        sb.remove()


def test_exec_is_no_shell(sandbox: cloche.SandboxHandle) -> None:
    args = ["a b", "", "c\nd", "$HOME", "*", "é"]
    r = sandbox.exec("python3", ["-c", "import sys; print(sys.argv[1:])", *args])
    assert r.ok and r.stdout == f"{args}\n"


def test_a_command_that_is_not_there_is_no_result(sandbox: cloche.SandboxHandle) -> None:
    with pytest.raises(cloche.CommandNotStarted) as e:
        sandbox.exec("no-such-command")
    assert e.value.code == "command_not_found"
    assert sandbox.shell("no-such-command").exit_code == 127


def test_shell_is_the_callers_choice(sandbox: cloche.SandboxHandle) -> None:
    assert sandbox.shell("false | true").exit_code == 0
    assert sandbox.shell("set -o pipefail; false | true", shell="bash").exit_code == 1
    with pytest.raises(cloche.CommandNotStarted):
        sandbox.shell("true", shell="/bin/no-such-shell")


def test_a_timeout_keeps_output_and_sandbox(sandbox: cloche.SandboxHandle) -> None:
    r = sandbox.exec("sh", ["-c", "echo one; (sleep 1000 &) ; sleep 1000"], 2)
    assert r.timed_out and r.stdout == "one\n" and r.exit_code != 0
    assert sandbox.exec("true").ok
    assert "sleep" not in sandbox.shell("cat /proc/[0-9]*/comm").stdout


def test_signals_are_no_exit_codes(sandbox: cloche.SandboxHandle) -> None:
    r = sandbox.shell("kill -9 $$")
    assert r.exit_code is None and r.signal == "KILL" and not r.ok


def test_output_is_cut_and_counted(sandbox: cloche.SandboxHandle) -> None:
    r = sandbox.python("print('x' * 300_000, end='END')", max_output_bytes=64 << 10)
    assert r.ok and r.truncated and r.stdout.startswith("xxx") and r.stdout.endswith("END")
    assert r.stdout_dropped >= 200_000 and len(r.stdout) < 80_000


def test_output_that_is_not_utf8(sandbox: cloche.SandboxHandle) -> None:
    r = sandbox.python(r"import os; os.write(1, b'a\xff\x00b'); os.write(2, b'\xc3')")
    assert r.stdout_bytes == b"a\xff\x00b" and r.stderr_bytes == b"\xc3"
    assert r.stdout == "a�\0b" and r.output == "a�\0b�"


def test_order_of_both_streams(sandbox: cloche.SandboxHandle) -> None:
    r = sandbox.exec("sh", ["-c", "echo 1; echo 2 >&2; echo 3"], combined=True)
    assert r.stdout == "1\n2\n3\n"
    assert sorted(sandbox.shell("echo 1; echo 2 >&2").interleaved) == sorted("1\n2\n")


def test_streaming_with_input(sandbox: cloche.SandboxHandle) -> None:
    with sandbox.start("cat", process={"open_stdin": True}) as p:
        p.write("first\n")
        output = iter(p)
        assert next(output).text == "first\n"  # before the process has ended
        p.write(b"\xffrest")
        p.close_stdin()
        assert b"".join(c.data for c in output) == b"\xffrest"
        done = p.wait()
    assert done is not None and done.ok


def test_the_end_of_a_with_kills_the_process(sandbox: cloche.SandboxHandle) -> None:
    with sandbox.start("sleep", ["1000"]) as p:
        assert p.wait(timeout=0.05) is None
    done = p.wait(timeout=PATIENCE)
    assert done is not None and done.signal == "KILL"


def test_a_process_is_found_again(sandbox: cloche.SandboxHandle) -> None:
    first = sandbox.start_shell("echo said; exit 4")
    again = sandbox.process(first.id)
    assert again.read() == "said\n"
    done = again.wait()
    assert done is not None and done.exit_code == 4
    assert first.id in [p["exec_id"] for p in sandbox.processes()]


def test_logs_outlive_a_stop(sandbox: cloche.SandboxHandle) -> None:
    sandbox.shell("echo one; echo two; echo three")
    assert sandbox.logs(tail=2) == "two\nthree\n"
    assert sandbox.stop(grace=1)["state"] == "stopped"
    assert sandbox.logs() == "one\ntwo\nthree\n"
    assert sandbox.stop()["state"] == "stopped"
    assert sandbox.kill()["state"] == "stopped"


def test_a_stopped_sandbox_starts_again(sandbox: cloche.SandboxHandle) -> None:
    sandbox.files.write("/workspace/kept", b"workspace")
    sandbox.shell("echo root > /etc/kept")
    sandbox.stop(grace=1)
    info = sandbox.start_again()
    assert info["state"] == "running" and info.get("starts") == 1 and not info.get("lost")
    assert sandbox.shell("cat /workspace/kept /etc/kept").stdout == "workspaceroot\n"
    sandbox.shell("echo root > /etc/gone")
    sandbox.kill()
    assert [loss["kind"] for loss in sandbox.start_again().get("lost", [])] == ["root"]
    assert sandbox.shell("cat /etc/kept; ls /etc/gone").stdout == "root\n"


def test_get_list_remove(client: cloche.SandboxClient, make: Make, mark: str) -> None:
    sb = make()
    assert client.get(sb.name).id == client.get(sb.id).id == sb.id
    assert [s.id for s in client.list(labels={"test": mark}, states=["running"])] == [sb.id]
    last = client.remove(sb.id)
    assert last is not None and last["state"] == "deleted"
    assert sb.remove()["state"] == "deleted"
    assert client.remove("no-such-sandbox") is None
    with pytest.raises(cloche.NotFound):
        client.get("no-such-sandbox")


def test_a_sandbox_that_expired_between_calls(make: Make) -> None:
    sb = make(lifetime=3, transient=True, idle_timeout=3600)
    end = time.monotonic() + PATIENCE
    while True:
        try:
            sb.exec("true")
        except cloche.ClocheError as e:
            if isinstance(e, cloche.SandboxGone):
                assert e.terminal_reason == "ttl"
                return
            assert time.monotonic() < end, e
        assert time.monotonic() < end
        time.sleep(0.2)


def test_creates_with_one_key_make_one_sandbox(make: Make, mark: str) -> None:
    assert make(idempotency_key=mark).id == make(idempotency_key=mark).id


def test_files(sandbox: cloche.SandboxHandle) -> None:
    files = sandbox.files
    data = bytes(range(256)) * 4096  # 1 MiB
    assert files.write("/workspace/big", io.BytesIO(data), mode=0o640).size == len(data)
    assert files.read("big") == data and files.read("big", offset=255, length=2) == b"\xff\0"
    assert b"".join(files.read_chunks("big")) == data
    assert files.stat("big").mode & 0o777 == 0o640
    files.mkdir("d/e")
    files.write("d/e/ü", "text")
    assert files.read_text("d/e/ü") == "text"
    files.write("d/\udcff", b"raw")
    assert [f.name for f in files.list("d")] == ["e", "\udcff"]
    assert files.read("d/\udcff") == b"raw"
    files.move("d", "moved")
    assert files.exists("moved/e/ü") and not files.exists("d")
    files.remove("moved", recursive=True)
    with pytest.raises(cloche.NotFound):
        files.read("moved")


def test_watch_reports_changes(sandbox: cloche.SandboxHandle) -> None:
    changes = sandbox.files.watch("/tmp", recursive=True, entries=True)
    assert next(changes)["kind"] == "ready"
    seen = {}
    for command, last in (("mkdir /tmp/d && echo text > /tmp/d/f", "d/f"), ("mv /tmp/d/f /tmp/g", "g")):
        sandbox.shell(command)
        for change in changes:
            seen[change["kind"], change["name"]] = change.get("info")
            if change["name"] == last:
                break
    assert ("create", "d") in seen and ("rename", "d/f") in seen
    info = seen["create", "g"]
    assert info is not None and info["size"] == 5
    changes.close()
    with pytest.raises(cloche.NotFound):
        next(sandbox.files.watch("/nowhere"))


def test_files_of_a_user_and_within(sandbox: cloche.SandboxHandle) -> None:
    files = sandbox.files
    sandbox.shell(
        "mkdir -p shut hers in; echo x > shut/f; chmod 700 shut; chown 1234:1234 hers; chmod 755 .;"
        " ln -s /etc out; ln -s /workspace/in back; ln -s loop loop; ln -s in/f leaf; echo y > in/f"
    )
    assert files.write("hers/a/f", b"z", user="1234:1234", within=["."]).uid == 1234
    found = files.list("hers", user="1234:1234", within=["/workspace"])[0]
    assert (found.name, found.uid) == ("a", 1234)
    assert files.stat("shut").user == "root" and files.stat("leaf", follow=True).type == "file"
    assert files.read("back/f", within=["."]) == b"y\n"
    assert b"".join(files.read_chunks("leaf", within=["in", "."], read_within=["in"])) == b"y\n"
    for path, options, code, errno, rule in (
        ("shut/f", {"user": "1234"}, "wrong_state", "EACCES", ""),
        ("out/passwd", {"within": ["."]}, "denied", "", "within"),
        ("/etc/passwd", {"within": ["."]}, "denied", "", "within"),
        ("in", {"within": ["."]}, "invalid_argument", "EISDIR", ""),
        ("loop", {"within": ["."]}, "invalid_argument", "ELOOP", ""),
        ("none", {"within": ["."]}, "not_found", "ENOENT", ""),
    ):
        with pytest.raises(cloche.ClocheError) as e:
            files.read(path, **options)
        assert (e.value.code, e.value.errno, e.value.rule) == (code, errno, rule), path
    with pytest.raises(cloche.PolicyDenied) as fixed:
        files.write("in/f", b"", within=["."], read_within=["in"])
    assert fixed.value.rule == "read_within"
    with pytest.raises(cloche.ClocheError) as there:
        files.mkdir("in", parents=False)
    assert there.value.errno == "EEXIST"
    with pytest.raises(cloche.ClocheError) as kept:
        files.remove("in", keep_dirs=True)
    assert kept.value.errno == "EISDIR"
    with pytest.raises(cloche.InvalidRequest):
        files.read("in/f", within="/workspace")
    with pytest.raises(TypeError):
        files.read("in/f", withn=["/workspace"])  # type: ignore[call-arg]
    files.move("in/f", "hers/f", within=["."])
    files.remove("hers/f", user="1234", within=["."])
    assert not files.exists("hers/f", within=["."])


def test_tar_goes_round(sandbox: cloche.SandboxHandle) -> None:
    sandbox.shell("mkdir -p a/b && echo hi > a/b/f && ln -s b/f a/l && chmod 600 a/b/f")
    archive = b"".join(sandbox.files.tar_out("a"))
    with tarfile.open(fileobj=io.BytesIO(archive)) as t:
        assert "b/f" in [n.removeprefix("./") for n in t.getnames()]
    assert sandbox.files.tar_in("c", archive, atomic=True)["entries"] >= 3
    assert sandbox.shell("cat c/l && stat -c %a c/b/f").stdout == "hi\n600\n"
    with pytest.raises(cloche.ClocheError):
        sandbox.files.tar_in("c", b"not a tar archive" * 100)


def test_endpoints(client: cloche.SandboxClient, make: Make) -> None:
    try:
        sb = make(endpoints=[{"name": "model", "target": "client", "listen": "127.0.0.1:13131"}])
    except cloche.PolicyDenied as e:
        pytest.skip(f"this caller may have no endpoints: {e}")
    assert [e["endpoint"]["name"] for e in sb.endpoints.list()] == ["model"]
    sb.endpoints.add({"name": "other", "target": "client", "listen": "127.0.0.1:13132"})
    assert sb.endpoints.get("other")["sandbox_view"]["url"] == "http://127.0.0.1:13132"
    answers = sb.python(
        "import urllib.request, urllib.error\n"
        "try: urllib.request.urlopen('http://127.0.0.1:13131')\n"
        "except urllib.error.HTTPError as e: print(e.code)"
    )
    assert answers.stdout.startswith("5"), answers  # it exists, and no client serves it
    sb.endpoints.remove("other", grace=0)
    assert len(sb.endpoints.list()) == 1


def test_ports_have_urls(make: Make) -> None:
    sb = make()
    try:
        opened = sb.open_port(8000, ttl=60)
    except cloche.ClocheError as e:
        pytest.skip(f"this daemon serves no ports: {e}")
    assert opened["access_url"] == f"{opened['url']}?cloche_token={opened['token']}"
    (listed,) = sb.open_ports()
    assert (listed["port"], listed["url"], listed["public"]) == (8000, opened["url"], False)
    assert "token" not in listed and "expires_at" in listed
    sb.close_port(8000)
    assert sb.open_ports() == []
    with pytest.raises(cloche.NotFound):
        sb.close_port(8000)
    with pytest.raises(cloche.InvalidRequest):
        sb.open_port(0)


def test_what_may_leave_can_be_changed(make: Make) -> None:
    sb = make(egress=[], network="on")
    told = sb.set_egress([], deny=["a.example"])
    assert told["egress"]["deny"] == ["a.example"]
    assert sb.egress()["egress"]["deny"] == ["a.example"]


def test_no_way_out_unless_it_is_asked_for(make: Make) -> None:
    sb = make(egress=[])
    names = "import socket; socket.getaddrinfo('example.com', 80)"
    assert not sb.python(names, 30).ok
    with pytest.raises(cloche.InvalidRequest):
        make(egress="example.com")


def test_secrets_that_are_not_there_fail_the_create(
    make: Make, client: cloche.SandboxClient, mark: str
) -> None:
    with pytest.raises(cloche.ClocheError):
        make(secrets=["no-such-secret"])
    assert client.list(labels={"test": mark}) == []


def test_bad_requests_never_leave(client: cloche.SandboxClient, sandbox: cloche.SandboxHandle) -> None:
    for bad in (
        lambda: sandbox.exec("echo", "one text"),
        lambda: sandbox.exec("echo", ["\udcff"]),
        lambda: sandbox.exec("true", timeout=-1),
        lambda: sandbox.exec("true", timeout=float("nan")),
        lambda: client.create(nonsense=1),  # type: ignore[call-arg]
        lambda: client.get(""),
    ):
        with pytest.raises(cloche.InvalidRequest):
            bad()


def test_threads_share_a_client(sandbox: cloche.SandboxHandle) -> None:
    seen: list[str] = []
    threads = [
        threading.Thread(target=lambda i=i: seen.append(sandbox.exec("echo", [str(i)]).stdout))
        for i in range(8)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE)
    assert sorted(seen) == [f"{i}\n" for i in range(8)]


def test_a_port_inside_is_a_port_of_this_machine(sandbox: cloche.SandboxHandle) -> None:
    data = os.urandom(3 << 20)
    sandbox.files.write("f", data)
    ready: wire.ProcessSpec = {"ready": {"port": 8000}}
    with sandbox.start("python3", ["-m", "http.server", "8000"], process=ready) as server:
        assert server.wait_ready(60)
        with sandbox.forward(8000) as forward:
            for _ in range(3):
                with urllib.request.urlopen(f"{forward.url}/f", timeout=60) as answer:
                    assert answer.read() == data
            taken = forward.port
            with pytest.raises(OSError):
                sandbox.forward(8000, local_port=taken).start()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", taken), timeout=60)
    with sandbox.forward(8001) as nobody, socket.create_connection((nobody.host, nobody.port)) as closed:
        closed.settimeout(60)
        assert closed.recv(1) == b""
    with pytest.raises(cloche.InvalidRequest, match="65535"):
        sandbox.forward(65536)


def test_each_direction_of_a_forwarded_connection_ends_by_itself(sandbox: cloche.SandboxHandle) -> None:
    program = """import socket
s = socket.create_server(("127.0.0.1", 9000))
c = s.accept()[0]
got = b""
while data := c.recv(1 << 16): got += data
c.sendall(got[::-1])
"""
    with sandbox.start("python3", ["-c", program]):
        sent = os.urandom(300_000)
        end = time.monotonic() + 60
        got = b""
        with sandbox.forward(9000) as forward:
            while not got and time.monotonic() < end:  # until it listens
                with socket.create_connection((forward.host, forward.port), timeout=60) as c:
                    with contextlib.suppress(OSError):
                        c.sendall(sent)
                        c.shutdown(socket.SHUT_WR)
                        while data := c.recv(1 << 16):
                            got += data
        assert got == sent[::-1]


def _ask(sandbox: cloche.SandboxHandle, who: int, answers: Any) -> None:
    wrong = [
        r.stdout for i in range(15) if (r := sandbox.exec("echo", [f"{who}-{i}"])).stdout != f"{who}-{i}\n"
    ]
    answers.put((who, wrong))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork with threads
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_share_a_handle(sandbox: cloche.SandboxHandle, method: str) -> None:
    """Each gets the answers to what it asked: a fork has connections of its own, a spawned process a
    handle that was pickled."""
    context: Any = multiprocessing.get_context(method)
    sandbox.exec("true")  # there is a connection before
    answers = context.Queue()
    all_of_them = [context.Process(target=_ask, args=(sandbox, who, answers)) for who in range(3)]
    for p in all_of_them:
        p.start()
    _ask(sandbox, 3, answers)
    assert sorted(answers.get(timeout=120) for _ in range(4)) == [(who, []) for who in range(4)]
    for p in all_of_them:
        p.join(60)
        assert p.exitcode == 0


def test_a_pickle_has_an_address_and_an_id(sandbox: cloche.SandboxHandle) -> None:
    data = pickle.dumps(sandbox)
    token = os.environ.get("CLOCHE_TOKEN")
    assert not token or token.encode() not in data
    other = pickle.loads(data)
    assert (other.id, other.name) == (sandbox.id, sandbox.name)
    assert other.exec("pwd").stdout == sandbox.info["cwd"] + "\n"
    assert other.refresh()["image"] == sandbox.info["image"]


def test_code_contexts(client: cloche.SandboxClient) -> None:
    packages = os.environ.get("CLOCHE_TEST_JUPYTER", "")
    mounts: list[Any] = [{"source": packages, "target": "/packages", "read_only": True}] if packages else []
    with client.create(image=IMAGE, mounts=mounts, env={"PYTHONPATH": "/packages"}) as sandbox:
        with pytest.raises(cloche.NotFound):
            sandbox.code.restart("none")
        with pytest.raises(cloche.NotFound):
            sandbox.run_code("1", context="none")
        assert sandbox.code.contexts() == []
        if not packages:
            with pytest.raises(cloche.ClocheError, match="Jupyter"):
                sandbox.run_code("1")
            return
        first = sandbox.run_code("x = 6\nprint('printed')\nx * 7")
        assert (first.stdout, first.text, first.status, first.error) == ("printed\n", "42", "ok", None)
        failed = sandbox.run_code("1/0")
        assert failed.error is not None and failed.error.name == "ZeroDivisionError"
        slow = sandbox.run_code("import time; time.sleep(60)", timeout=0.3)
        assert slow.status == "timeout"
        made = sandbox.code.create(id="own", cwd="/tmp")
        assert sandbox.run_code("import os; os.getcwd()", context=made["id"]).text == "'/tmp'"
        assert [c["id"] for c in sandbox.code.contexts()] == ["python", "own"]
        sandbox.code.restart("python")
        assert sandbox.run_code("x").status == "error"
        sandbox.code.remove("own")
        assert [c["id"] for c in sandbox.code.contexts()] == ["python"]
