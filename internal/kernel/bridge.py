"""Runs one Jupyter kernel and executes code in it for connections at a loopback port.

The program runs inside a sandbox, in the Python of its image, and needs jupyter_client there.
Arguments: the language of the kernel in lower case, and the working directory. When the kernel is ready, it
prints one line of JSON with the port and a token; if there is no such kernel, a line with the
reason. A connection sends one request, a line of JSON, and reads lines of JSON until the last,
which has the type "end". The kernel's own sockets are files in a directory that only this user
can read.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time

# Limits in bytes: of a request, of one event, and of all events of a run.
MAX_REQUEST = 32 << 20
MAX_EVENT = 12 << 20
MAX_RUN = 64 << 20
# Seconds: how long a kernel may take to start, how long to react to an interrupt, and between two looks
# whether a silent kernel lives.
START = 120
REACT = 5
LOOK = 0.5

# Code that sets and restores environment variables, by language. Each is given JSON.
SET_ENV = {
    "python": "import os as _os, json as _json\n_cloche_env = _json.loads({0!r})\n"
    "_cloche_old = {{k: _os.environ.get(k) for k in _cloche_env}}\n_os.environ.update(_cloche_env)\ndel _os, _json, _cloche_env",
}
RESET_ENV = {
    "python": "import os as _os\nfor _k, _v in _cloche_old.items():\n"
    "    _os.environ.pop(_k, None) if _v is None else _os.environ.__setitem__(_k, _v)\ndel _cloche_old, _os, _k, _v",
}


def say(**line):
    print(json.dumps(line), flush=True)


def give_up(reason, message, **more):
    say(failed=reason, message=message, **more)
    sys.exit(3)


def kernel_of(language):
    """Returns the name of the kernel for a language: by its kernelspec's name or language."""
    from jupyter_client.kernelspec import KernelSpecManager

    manager = KernelSpecManager()
    found = {name: spec["spec"].get("language", "").lower() for name, spec in manager.get_all_specs().items()}
    if language == "python" and "python3" in found:
        return "python3"
    if language in found:
        return language
    for name in sorted(found):
        if found[name] == language:
            return name
    give_up("no_kernel", f"the image has no Jupyter kernel for {language}", languages=sorted(set(found.values()) - {""}))


class Bridge:
    """One kernel. A run holds the turn, and alone uses the kernel's sockets."""

    def __init__(self, language, cwd, setup):
        self.language, self.cwd, self.setup = language, cwd, setup
        self.token = secrets.token_hex(16)
        self.turn = threading.Lock()
        self.restarts = 0
        self.dir = tempfile.mkdtemp(prefix="cloche-kernel-")
        self.km = None

    def start(self):
        from jupyter_client.manager import KernelManager

        self.km = KernelManager(
            kernel_name=kernel_of(self.language), transport="ipc", ip=os.path.join(self.dir, "s"),
            connection_file=os.path.join(self.dir, "c.json"),
        )  # fmt: skip
        self.km.start_kernel(cwd=self.cwd or None, stdout=sys.stderr, stderr=sys.stderr)
        self.attach()

    def attach(self):
        self.kc = self.km.client()
        self.kc.start_channels(stdin=False, hb=False)
        self.kc.wait_for_ready(timeout=START)
        if self.language == "python" and self.setup:
            self.quiet(self.setup)

    def messages(self, run):
        """Returns the messages of a run that have come, without waiting. Other messages are dropped, and the
        replies on the shell channel too: they say nothing that the events do not."""
        for channel in self.kc.shell_channel, self.kc.iopub_channel:
            while True:
                _, m = self.kc.session.recv(channel.socket, mode=zmq.NOBLOCK)
                if m is None:
                    break
                if channel is self.kc.iopub_channel and m["parent_header"].get("msg_id") == run:
                    yield m["msg_type"], m["content"]

    def quiet(self, code):
        """Runs code of this program's own."""
        run = self.kc.execute(code, silent=True, store_history=False, allow_stdin=False)
        end = time.monotonic() + REACT
        while time.monotonic() < end:
            self.kc.iopub_channel.socket.poll(100)
            if any(content.get("execution_state") == "idle" for _, content in self.messages(run)):
                return

    def restart(self):
        """Starts the kernel anew. What it knew is lost, and a run in progress ends."""
        self.restarts += 1
        with self.turn:
            self.again()

    def again(self):
        self.kc.stop_channels()
        self.km.restart_kernel(now=True)
        self.attach()

    def serve(self, conn):
        with conn, contextlib.suppress(OSError, ValueError):
            with conn.makefile("rb") as lines:
                request = json.loads(lines.readline(MAX_REQUEST))
            if not secrets.compare_digest(str(request.get("token", "")), self.token):
                return
            out = Output(conn)
            if request.get("op") == "restart":
                self.restart()
                out.end("ok")
                return
            while not self.turn.acquire(timeout=LOOK):
                if gone(conn):
                    return
            try:
                self.run(request, conn, out)
            finally:
                self.turn.release()

    def run(self, request, conn, out):
        env = request.get("env")
        if env:
            if self.language not in SET_ENV:
                out.error("Unsupported", f"variables cannot be set for one run in {self.language}")
                return out.end("error")
            self.quiet(SET_ENV[self.language].format(json.dumps(env)))
        restarts = self.restarts
        out.send("started")
        status = self.execute(request, conn, out, restarts)
        if status in ("restarted", "died", "hangs"):
            if status != "restarted":  # the one who restarts waits for the turn
                self.again()
        elif env:
            self.quiet(RESET_ENV[self.language])
        return out.end("timeout" if status == "hangs" else status)

    def execute(self, request, conn, out, restarts):
        """Runs code, and returns the status of its end."""
        run = self.kc.execute(request["code"], allow_stdin=False)
        limit = time.monotonic() + request["timeout"] if request.get("timeout") else None
        poller = zmq.Poller()
        poller.register(self.kc.iopub_channel.socket, zmq.POLLIN)
        poller.register(conn, zmq.POLLIN)
        status, stopped, patience = "ok", None, None
        while True:
            wait = LOOK if limit is None or stopped else max(0.0, min(LOOK, limit - time.monotonic()))
            ready = dict(poller.poll(wait * 1000))
            for kind, content in self.messages(run) if self.kc.iopub_channel.socket in ready else ():
                if kind == "status" and content["execution_state"] == "idle":
                    if stopped == "timeout":
                        status = "timeout"
                        out.error("TimeoutError", f"the code was interrupted after {request['timeout']:g} s")
                    return status
                if kind == "error" and not stopped:
                    status = "error"
                    out.error(content["ename"], content["evalue"], "\n".join(content["traceback"]))
                elif stopped != "left":
                    out.event(kind, content)
            if self.restarts != restarts:
                out.error("ContextRestarting", "the context was restarted during the run")
                return "restarted"
            if not ready and not self.km.is_alive():
                out.error("KernelDied", "the kernel died, and its variables are lost")
                return "died"
            if conn.fileno() in ready or out.broken:
                with contextlib.suppress(KeyError):
                    poller.unregister(conn)
                stopped = stopped or "left"
            if not stopped and limit is not None and time.monotonic() >= limit:
                stopped = "timeout"
            if stopped and patience is None:
                patience = time.monotonic() + REACT
                self.km.interrupt_kernel()
            elif stopped and time.monotonic() >= patience:
                out.error("KernelHangs", "the kernel did not react to an interrupt and was started again; its variables are lost")
                return "hangs"

    def close(self):
        with contextlib.suppress(Exception):
            if self.km:
                self.km.shutdown_kernel(now=True)
        shutil.rmtree(self.dir, ignore_errors=True)


def gone(conn):
    """Reports whether the other end of a connection has left."""
    try:
        return conn.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


class Output:
    """Writes the events of one run. What is over a limit is dropped, and the end says so."""

    def __init__(self, conn):
        self.conn, self.written, self.truncated, self.broken, self.count = conn, 0, False, False, None

    def event(self, kind, content):
        if kind == "execute_input":
            self.count = content["execution_count"]
        elif kind == "stream":
            self.send(content["name"] if content["name"] == "stderr" else "stdout", text=content["text"])
        elif kind in ("display_data", "execute_result", "update_display_data"):
            self.send("result", main=kind == "execute_result", data=content["data"])

    def error(self, name, value, traceback=""):
        self.send("error", name=name, value=value, traceback=traceback)

    def send(self, kind, **fields):
        line = json.dumps({"type": kind, **fields}, default=str).encode()
        if len(line) > MAX_EVENT or self.written + len(line) > MAX_RUN and kind != "error":
            self.truncated = True
            return
        self.written += len(line)
        self.write(line)

    def end(self, status):
        self.write(json.dumps({"type": "end", "status": status, "execution_count": self.count, "truncated": self.truncated}).encode())

    def write(self, line):
        if self.broken:
            return
        try:
            self.conn.sendall(line + b"\n")
        except OSError:
            self.broken = True


def main(language, cwd, setup):
    bridge = Bridge(language, cwd, setup)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the kernel's own group gets it
    try:
        bridge.start()
        with socket.create_server(("127.0.0.1", 0)) as server:
            say(port=server.getsockname()[1], token=bridge.token, kernel=bridge.km.kernel_name)
            while True:
                conn, _ = server.accept()
                conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=bridge.serve, args=(conn,), daemon=True).start()
    except (RuntimeError, OSError) as e:
        give_up("kernel_failed", f"{type(e).__name__}: {e}")
    finally:
        bridge.close()


try:
    import jupyter_client  # noqa: F401
    import zmq
except ImportError:
    give_up("no_jupyter", "the image has no Jupyter: its Python cannot import jupyter_client, which comes with ipykernel")
main(sys.argv[1], sys.argv[2], globals().get("SETUP", ""))
