"""Runs one Jupyter kernel and executes code in it for connections at a loopback port.

The program runs inside a sandbox, in the Python of its image, and needs jupyter_client there.
Arguments: the language of the kernel, and the working directory. When the kernel is ready, it
prints one line of JSON with the port and a token; if there is no such kernel, a line with the
reason. A connection sends one request, a line of JSON, and reads lines of JSON until the last,
which has the type "end". The kernel's own sockets are files in a directory that only this user
can read.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile

# Limits in bytes: of a request, of one event, and of all events of a run.
MAX_REQUEST = 32 << 20
MAX_EVENT = 12 << 20
MAX_RUN = 64 << 20
# Seconds: how long a kernel may take to start, and how long to react to an interrupt.
START = 120
REACT = 5

LANGUAGES = {"js": "javascript", "ts": "typescript", "py": "python", "python3": "python"}

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
    def __init__(self, language, cwd, setup):
        self.language, self.cwd, self.setup = language, cwd, setup
        self.token = secrets.token_hex(16)
        self.turn = asyncio.Lock()
        self.restarts = 0
        self.dir = tempfile.mkdtemp(prefix="cloche-kernel-")

    async def start(self):
        from jupyter_client.manager import AsyncKernelManager

        self.km = AsyncKernelManager(
            kernel_name=kernel_of(self.language), transport="ipc", ip=os.path.join(self.dir, "s"),
            connection_file=os.path.join(self.dir, "c.json"),
        )  # fmt: skip
        await self.km.start_kernel(cwd=self.cwd or None, stdout=sys.stderr, stderr=sys.stderr)
        await self.attach()

    async def attach(self):
        self.kc = self.km.client()
        self.kc.start_channels()
        await self.kc.wait_for_ready(timeout=START)
        self.replies = asyncio.ensure_future(self.drain(self.kc))
        if self.language == "python" and self.setup:
            await self.quiet(self.setup)

    async def drain(self, kc):
        """Reads the replies on the shell channel, which say nothing that the events do not."""
        with contextlib.suppress(Exception):
            while True:
                await kc.get_shell_msg()

    async def quiet(self, code):
        """Runs code of this program's own."""
        run = self.kc.execute(code, silent=True, store_history=False, allow_stdin=False)
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(REACT) if hasattr(asyncio, "timeout") else contextlib.nullcontext():
                while True:
                    m = await self.kc.get_iopub_msg()
                    if m["parent_header"].get("msg_id") == run and m["content"].get("execution_state") == "idle":
                        return

    async def restart(self, ask=True):
        """Starts the kernel anew. What it knew is lost."""
        self.restarts += 1  # ends the run that holds the turn
        if ask:
            async with self.turn:
                await self.again()
        else:
            await self.again()

    async def again(self):
        self.replies.cancel()
        self.kc.stop_channels()
        await self.km.restart_kernel(now=True)
        await self.attach()

    async def serve(self, reader, writer):
        try:
            request = json.loads(await reader.readline())
            if not secrets.compare_digest(str(request.get("token", "")), self.token):
                return
            out = Output(writer)
            if request.get("op") == "restart":
                await self.restart()
                await out.end("ok")
            else:
                await self.run(request, reader, out)
        except (ConnectionError, ValueError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def run(self, request, reader, out):
        left = asyncio.ensure_future(reader.read(1))
        turn = asyncio.ensure_future(self.turn.acquire())
        try:
            await asyncio.wait({left, turn}, return_when=asyncio.FIRST_COMPLETED)
            if left.done():
                return
            await self.execute(request, left, out)
        finally:
            left.cancel()
            if turn.done() and not turn.cancelled():
                self.turn.release()
            else:
                turn.cancel()

    async def execute(self, request, left, out):
        env = request.get("env")
        if env:
            if self.language not in SET_ENV:
                await out.send("error", name="Unsupported", value=f"variables cannot be set for one run in {self.language}", traceback="")
                return await out.end("error")
            await self.quiet(SET_ENV[self.language].format(json.dumps(env)))
        restarts = self.restarts
        await out.send("started")
        run = self.kc.execute(request["code"], allow_stdin=False)
        loop = asyncio.get_running_loop()
        limit = loop.time() + request["timeout"] if request.get("timeout") else None
        status, stopped, patience = "ok", None, None
        while True:
            message = asyncio.ensure_future(self.kc.get_iopub_msg())
            wait = 0.5 if limit is None or stopped else max(0.0, min(0.5, limit - loop.time()))
            await asyncio.wait({message} if stopped else {message, left}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            if message.done() and not message.exception():
                m = message.result()
                if m["parent_header"].get("msg_id") == run:
                    kind, content = m["msg_type"], m["content"]
                    if kind == "status":
                        if content["execution_state"] == "idle":
                            break
                    elif kind == "error" and not stopped:
                        status = "error"
                        await out.send("error", name=content["ename"], value=content["evalue"], traceback="\n".join(content["traceback"]))
                    elif not (stopped == "left"):
                        await out.event(kind, content)
            else:
                message.cancel()
            if self.restarts != restarts:
                status = "restarted"
                await out.send("error", name="ContextRestarting", value="the context was restarted during the run", traceback="")
                return await out.end(status)
            if not await self.km.is_alive():
                await out.send("error", name="KernelDied", value="the kernel died, and its variables are lost", traceback="")
                await self.restart(ask=False)
                return await out.end("died")
            if not stopped and (left.done() or out.broken):
                stopped = "left"
            if not stopped and limit is not None and loop.time() >= limit:
                stopped = "timeout"
            if stopped and patience is None:
                patience = loop.time() + REACT
                await self.km.interrupt_kernel()
            elif stopped and loop.time() >= patience:
                await out.send("error", name="KernelHangs", value="the kernel did not react to an interrupt and was started again; its variables are lost", traceback="")
                await self.restart(ask=False)
                return await out.end(stopped)
        if stopped == "timeout":
            status = "timeout"
            await out.send("error", name="TimeoutError", value=f"the code was interrupted after {request['timeout']:g} s", traceback="")
        if env:
            await self.quiet(RESET_ENV[self.language])
        await out.end(status)

    async def close(self):
        with contextlib.suppress(Exception):
            await self.km.shutdown_kernel(now=True)
        shutil.rmtree(self.dir, ignore_errors=True)


class Output:
    """Writes the events of one run. What is over a limit is dropped, and the end says so."""

    def __init__(self, writer):
        self.writer, self.written, self.truncated, self.broken, self.count = writer, 0, False, False, None

    async def event(self, kind, content):
        if kind == "execute_input":
            self.count = content["execution_count"]
        elif kind == "stream":
            await self.send(content["name"] if content["name"] == "stderr" else "stdout", text=content["text"])
        elif kind in ("display_data", "execute_result", "update_display_data"):
            await self.send("result", main=kind == "execute_result", data=content["data"])

    async def send(self, kind, **fields):
        line = json.dumps({"type": kind, **fields}, default=str).encode()
        if len(line) > MAX_EVENT or self.written + len(line) > MAX_RUN and kind not in ("end", "error"):
            self.truncated = True
            return
        self.written += len(line)
        await self.write(line)

    async def end(self, status):
        await self.write(json.dumps({"type": "end", "status": status, "execution_count": self.count, "truncated": self.truncated}).encode())

    async def write(self, line):
        if self.broken:
            return
        try:
            self.writer.write(line + b"\n")
            await self.writer.drain()
        except ConnectionError:
            self.broken = True


async def main(language, cwd, setup):
    language = LANGUAGES.get(language.lower(), language.lower())
    bridge = Bridge(language, cwd, setup)
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    for s in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(s, lambda: over.done() or over.set_result(None))
    try:
        await bridge.start()
        server = await asyncio.start_server(bridge.serve, "127.0.0.1", 0, limit=MAX_REQUEST)
        say(port=server.sockets[0].getsockname()[1], token=bridge.token, kernel=bridge.km.kernel_name)
        await over
        server.close()
    except (RuntimeError, OSError) as e:
        give_up("kernel_failed", f"{type(e).__name__}: {e}")
    finally:
        if hasattr(bridge, "km"):
            await bridge.close()


try:
    import jupyter_client  # noqa: F401
except ImportError:
    give_up("no_jupyter", "the image has no Jupyter: its Python cannot import jupyter_client, which comes with ipykernel")
asyncio.run(main(sys.argv[1], sys.argv[2], globals().get("SETUP", "")))
