"""What the client sends, and what it does with answers."""

from __future__ import annotations

import ast
import errno
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import cloche
from cloche import _address

from .test_bad_daemons import PROCESS, SANDBOX, Stranger, chunked, entry, http, stranger

OK = http(200, {})


def asked(s: Stranger, number: int = -1) -> tuple[str, str, dict[str, list[str]]]:
    """The method, the path and the query of a request."""
    method, url, _ = s.asked[number].split(b" ", 2)
    parts = urlsplit(url.decode())
    return method.decode(), parts.path, parse_qs(parts.query)


def refusal(code: str, status: int, **more: object) -> bytes:
    return http(status, {"error": {"code": code, "message": "no", **more}})


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl to make a certificate")
def test_a_certificate_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    make = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    )
    subprocess.run(
        [*make.split(), "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
        timeout=60,
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    s = Stranger([http(200, {"version": "x"})], tls)
    port = s.listener.getsockname()[1]
    trusting = ssl.create_default_context(cafile=str(certificate))
    try:
        with cloche.SandboxClient(f"https://localhost:{port}", "a-token", verify=trusting) as client:
            assert client.version() == {"version": "x"}
        s.asked.clear()
        with pytest.raises(cloche.SandboxUnavailable, match="is not trusted") as unknown:
            cloche.SandboxClient(f"https://localhost:{port}", "a-token").version()
        assert "CLOCHE_CA_FILE" in unknown.value.hint and not unknown.value.retryable
        with pytest.raises(cloche.SandboxUnavailable, match="is not trusted"):  # for another name
            cloche.SandboxClient(f"https://127.0.0.1:{port}", "a-token", verify=trusting).version()
        assert s.asked == [], "the token was shown to a stranger"

        monkeypatch.setenv("CLOCHE_CA_FILE", str(certificate))
        assert cloche.SandboxClient(f"https://localhost:{port}", "a-token").version() == {"version": "x"}
        with pytest.raises(cloche.SandboxUnavailable, match="is not trusted"):
            cloche.SandboxClient(
                f"https://localhost:{port}", "a-token", verify=ssl.create_default_context()
            ).version()
        for unusable in (tmp_path / "none", key):
            monkeypatch.setenv("CLOCHE_CA_FILE", str(unusable))
            with pytest.raises(cloche.InvalidRequest, match="cannot be read"):
                cloche.SandboxClient(f"https://localhost:{port}", "a-token")
            cloche.SandboxClient(f"tcp://localhost:{port}", "a-token")  # without TLS it is no matter
    finally:
        s.listener.close()


def test_the_wrong_scheme_is_told() -> None:
    plain = (
        b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"  # as Go says it
    )
    with stranger(plain) as (client, _), pytest.raises(cloche.InvalidRequest, match="speaks TLS"):
        client.version()


def test_a_daemon_without_tls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            conn, _ = listener.accept()
            with conn:
                conn.recv(64 << 10)
                conn.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n400 Bad Request")

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with pytest.raises(cloche.SandboxUnavailable, match="there is no TLS"):
                cloche.SandboxClient(f"https://127.0.0.1:{listener.getsockname()[1]}").version()
        finally:
            thread.join(10)


def test_a_name_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(cloche.SandboxUnavailable, match="the name of the daemon at tcp://box:7070"):
        cloche.SandboxClient("tcp://box:7070").version()


def test_ids_are_one_part_of_a_path() -> None:
    process = {**PROCESS, "exec_id": "p/../q?r"}
    with stranger(http(200, SANDBOX), http(200, process), OK) as (client, s):
        sb = client.get("a/../b?c#d%2F")
        assert s.asked[0].split()[1] == b"/v1/sandboxes/a%2F..%2Fb%3Fc%23d%252F"
        sb.process("p/../q?r")
        assert s.asked[1].split()[1] == b"/v1/sandboxes/sb-1/processes/p%2F..%2Fq%3Fr"
        sb.endpoints.remove("x/y")
        assert s.asked[2].split()[1] == b"/v1/sandboxes/sb-1/endpoints/x%2Fy"
        for bad in ("", ".", ".."):
            for call in (client.get, client.remove, sb.process, sb.kill_process, sb.endpoints.remove):
                with pytest.raises(cloche.InvalidRequest):
                    call(bad)
        assert len(s.asked) == 3


def test_input_arrives_once() -> None:
    """Input whose answer was lost is sent once more for the same place."""
    process = {**PROCESS, "stdin_offset": 3}
    answers = [
        http(200, SANDBOX),
        http(200, process),
        b"",
        http(200, {"offset": 7}),
        http(200, {"offset": 8}),
        b"",
    ]
    with stranger(*answers) as (client, s):
        p = client.get("sb-1").process("p")
        p.write("four")
        p.write("5")
        assert [asked(s, n)[2] for n in (2, 3, 4)] == [{"offset": ["3"]}, {"offset": ["3"]}, {"offset": ["7"]}]
        with pytest.raises(cloche.ConnectionBroken):
            p.close_stdin()
        assert [asked(s, n)[2] for n in (5, 6)] == [{"offset": ["8"], "end": ["true"]}] * 2 and len(
            s.asked
        ) == 7


def file(name: str) -> dict[str, object]:
    when = "2026-01-02T03:04:05Z"
    return {"name": name, "type": "file", "size": 0, "mode": 0o644, "uid": 0, "gid": 0, "mod_time": when}


def test_lists_have_all_pages() -> None:
    pages = [http(200, {"files": [file("a")], "next": "a"}), http(200, {"files": [file("b")]})]
    with stranger(http(200, SANDBOX), *pages) as (client, s):
        assert [f.name for f in client.get("sb-1").files.list("d")] == ["a", "b"]
        assert "cursor" not in asked(s, 1)[2] and asked(s, 2)[2]["cursor"] == ["a"]
        assert asked(s, 1)[2]["path"] == asked(s, 2)[2]["path"] == ["/workspace/d"]
    pages = [http(200, {"sandboxes": [SANDBOX], "next": "a"}), http(200, {"sandboxes": [SANDBOX]})]
    with stranger(*pages) as (client, s):
        assert len(client.list(labels={"k": "v"}, states=["running"])) == 2
        assert asked(s, 1)[2]["cursor"] == ["a"]
        assert all(
            asked(s, n)[2]["label"] == ["k=v"] and asked(s, n)[2]["state"] == ["running"] for n in (0, 1)
        )


def test_a_list_that_does_not_go_on_ends() -> None:
    with stranger(http(200, SANDBOX), http(200, {"files": [], "next": "a"})) as (client, s):
        assert client.get("sb-1").files.list() == [] and len(s.asked) == 3
    with stranger(http(200, {"sandboxes": [], "next": "a"})) as (client, s):
        assert client.list() == [] and len(s.asked) == 2


@pytest.mark.parametrize(
    ("answer", "raises"),
    [
        (refusal("not_found", 404), None),
        (refusal("wrong_state", 409), None),
        (refusal("sandbox_lost", 410), None),
        (refusal("denied", 403), cloche.PolicyDenied),
        (refusal("internal", 500), cloche.ClocheError),
        (b"", cloche.ConnectionBroken),
    ],
)
def test_a_kill_that_failed_is_an_error(answer: bytes, raises: type[cloche.ClocheError] | None) -> None:
    kills: list[Callable[[cloche.SandboxHandle], None]] = [
        lambda sb: sb.process("p").kill(),
        lambda sb: sb.kill_process("p"),
        lambda sb: sb.process("p").__exit__(None, None, None),
    ]
    for number, kill in enumerate(kills):
        found = [] if number == 1 else [http(200, PROCESS)]
        with stranger(http(200, SANDBOX), *found, answer) as (client, s):
            sb = client.get("sb-1")
            if raises:
                with pytest.raises(raises):
                    kill(sb)
            else:
                kill(sb)
            assert asked(s)[:2] == ("POST", "/v1/sandboxes/sb-1/processes/p/signal")
            assert s.asked[-1].endswith(b'{"signal":"KILL","scope":"tree"}')


def test_a_process_that_has_ended_is_not_killed() -> None:
    with stranger(http(200, SANDBOX), http(200, {**PROCESS, "running": False})) as (client, s):
        with client.get("sb-1").process("p"):
            pass
        assert len(s.asked) == 2


def test_a_wait_ends_with_its_time() -> None:
    ended = http(200, {**PROCESS, "running": False})
    with stranger(http(200, SANDBOX), http(200, PROCESS), http(200, PROCESS), ended) as (client, s):
        assert client.get("sb-1").process("p").wait(timeout=0) is None and len(s.asked) == 3


def test_output_is_followed_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloche._sync.process.RECONNECT_SECONDS", 0.05)
    with stranger(http(200, SANDBOX), http(200, PROCESS), b"") as (client, _):
        with pytest.raises(cloche.ConnectionBroken):
            client.get("sb-1").process("p").read()


def test_logs_that_are_cut() -> None:
    """They are not followed again, for lines that were kept meanwhile would be left out."""
    cut = chunked(entry("one", 0), entry("two", 3)[:-20], whole=True)
    with stranger(http(200, SANDBOX), cut, chunked(whole=True)) as (client, s):
        sb = client.get("sb-1")
        with pytest.raises(cloche.ConnectionBroken):
            sb.logs()
        with pytest.raises(cloche.ConnectionBroken):
            list(sb.log_entries(follow_on=True))
        assert len(s.asked) == 3


def test_lines() -> None:
    lines = _address.Lines()
    assert lines.feed(b"a") == [] and lines.cut
    assert lines.feed(b"b\n\nc\nd") == [b"ab", b"c"] and lines.cut
    assert lines.feed(b"\n") == [b"d"] and not lines.cut


def test_what_is_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_address, "MAX_LINE", 100)
    monkeypatch.setattr(_address, "MAX_ERROR", 100)
    with pytest.raises(cloche.ClocheError):
        _address.Lines().feed(b"x" * 101)
    with stranger(refusal("too_many", 429, hint="x" * (1 << 20))) as (client, _):
        with pytest.raises(cloche.ClocheError) as e:
            client.list()
        assert e.value.code != "too_many" and len(str(e.value)) < 1000


def test_a_socket_of_another_user() -> None:
    e = _address.not_reached("unix:///x", PermissionError(errno.EACCES, "no"))
    assert isinstance(e, cloche.Unauthenticated)


class Echo(BaseHTTPRequestHandler):
    """Keeps connections, and answers with the client's end of the one that it was asked over."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        data = json.dumps({"version": str(self.client_address[1])}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork with threads
def test_a_fork_has_connections_of_its_own() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with cloche.SandboxClient(f"tcp://127.0.0.1:{server.server_port}", token="a-secret-token") as client:
        before = client.version()
        there, here = os.pipe()
        child = os.fork()
        if child == 0:
            text = ""
            try:
                text = str([client.version(), client.version()])
                client.close()
            finally:
                os.write(here, text.encode())
                os._exit(0)
        os.close(here)
        with open(there) as answer:
            forked = ast.literal_eval(answer.read())
        os.waitpid(child, 0)
        assert forked[0] == forked[1] != before
        assert client.version() == before
    server.shutdown()
    server.server_close()


def test_an_answer_of_another_process() -> None:
    other = {"exec_id": "p", "exit_code": 0, "stdout": "", "stderr": ""}
    with stranger(http(200, SANDBOX), http(200, other), http(200, PROCESS)) as (client, _):
        sandbox = client.get("sb-1")
        for ask in (lambda: sandbox.exec("true"), lambda: sandbox.start("true"), lambda: sandbox.process("q")):
            with pytest.raises(cloche.ClocheError, match="another process"):
                ask()


def test_a_proxy_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with stranger(OK) as (client, _):
        assert client.version() == {}


def test_a_client_that_is_closed_has_no_connections_and_can_be_used_again() -> None:
    with stranger(OK) as (client, s):
        client.version()
        assert client._t._pulse is not None
        [exchange] = client._t._pulse._free
        client.close()
        assert exchange.http.is_closed and client._t._pulse is None
        client.version()
        assert len(s.asked) == 2


def test_a_file_of_a_sandbox_that_has_ended() -> None:
    """That is not a file that is not there."""
    gone = refusal("not_found", 404, terminal_reason="ttl")
    with stranger(http(200, SANDBOX), gone, refusal("not_found", 404)) as (client, _):
        files = client.get("sb-1").files
        with pytest.raises(cloche.ClocheError):
            files.exists("f")
        assert not files.exists("f")


def test_the_end_of_a_with_says_what_was_not_removed() -> None:
    with stranger(http(200, SANDBOX), refusal("internal", 500)) as (client, _):
        with pytest.raises(cloche.ClocheError, match="no"):
            with client.get("sb-1"):
                pass
        with pytest.raises(ZeroDivisionError):
            with cloche.SandboxHandle(client._t, client_info()):
                raise ZeroDivisionError
    with stranger(http(200, SANDBOX), refusal("not_found", 404)) as (client, _):
        assert client.get("sb-1").remove()["state"] == "deleted"


def client_info() -> Any:
    """A sandbox as the daemon describes it."""
    return dict(SANDBOX)


def test_an_exec_whose_answer_was_lost_is_asked_for_by_its_id() -> None:
    result = http(200, {"exit_code": 0, "stdout": "", "stderr": "", "duration_ms": 1})
    with stranger(http(200, SANDBOX), b"", result) as (client, s):
        with pytest.raises(cloche.ClocheError, match="another process"):
            client.get("sb-1").exec("true")
        assert len(s.asked) == 3 and b'"exec_id":"py-' in s.asked[1]
        assert s.asked[1].split(b"\r\n\r\n")[1] == s.asked[2].split(b"\r\n\r\n")[1]


def test_what_cannot_be_meant_is_refused_before_it_is_sent() -> None:
    with stranger(http(200, SANDBOX)) as (client, s):
        sandbox = client.get("sb-1")
        cases: list[tuple[Callable[[], object], str]] = [
            (lambda: client.run("ls -l"), "['ls', '-l']"),
            (lambda: sandbox.exec("ls -l"), "'ls', ['-l'], or shell('ls -l')"),
            (lambda: sandbox.start("ls -l"), "'ls', ['-l'], or shell('ls -l')"),
            (lambda: client.create(cpus=0), "cpus=0.5"),
            (lambda: client.create(memory_mib=0), "memory_mib is 0"),
            (lambda: client.run_python("1", pids=-1), "pids is -1"),
        ]
        for ask, wants in cases:
            with pytest.raises(cloche.InvalidRequest) as e:
                ask()
            assert wants in str(e.value)
        assert len(s.asked) == 1
