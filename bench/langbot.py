#!/usr/bin/python3
"""Measures a box runtime of LangBot's through LangBot's own client: the reference,
"lbp box" with Docker, and "cloche box" with two engines, in one run that takes turns.

    pip3 install --target DIR langbot-plugin
    apt-get install docker.io
    PYTHONPATH=DIR python3 bench/langbot.py --cloche bin/cloche --out bench/results/langbot.md

It needs root. The Docker daemon is the run's own, with data and a socket of its own, and
so are the homes of Cloche; all of it is removed at the end.
"""

import argparse
import asyncio
import contextlib
import io
import logging
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from importlib.metadata import version

from langbot_plugin.box.client import ActionRPCBoxClient
from langbot_plugin.box.models import BoxManagedProcessSpec, BoxSpec
from langbot_plugin.entities.io.context import ActionContext
from langbot_plugin.runtime.io.controllers.ws.client import WebSocketClientController
from langbot_plugin.runtime.io.handler import Handler

TOKEN, INSTANCE = "bench-" * 8, "bench"
IMAGE = "rockchin/langbot-sandbox:latest"
PROGRAMS = ["sh", "cat", "mkdir", "sleep", "id"]
CTX = ActionContext(instance_uuid=INSTANCE, workspace_uuid="w", placement_generation=1)
LIMITS = {"max_sessions": 1000, "max_managed_processes": 1024}

args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
args.add_argument("--cloche", required=True, help="the program")
args.add_argument("--out", help="write the results to this file")
args.add_argument("-n", type=int, default=40, help="rounds; every subject runs once in each")
args.add_argument("--sessions", type=int, default=64)
args.add_argument("--processes", type=int, default=4, help="managed processes of each session")
args = args.parse_args()


def image(path):
    """A root filesystem with the machine's own shell and a few programs, as the sandboxes
    of Cloche have them."""
    files = {"/etc/profile": b"umask 022\n"}
    for name in PROGRAMS:
        program = os.path.realpath(shutil.which(name))
        files["/usr/bin/" + name] = program
        for word in subprocess.run(["ldd", program], capture_output=True, text=True).stdout.split():
            if word.startswith("/"):
                files[word] = os.path.realpath(word)
    with tarfile.open(path, "w") as t:
        link = tarfile.TarInfo("bin")
        link.type, link.linkname = tarfile.SYMTYPE, "usr/bin"
        t.addfile(link)
        for name in "workspace", "tmp", "proc", "sys", "dev":
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            t.addfile(info)
        for name, what in sorted(files.items()):
            if isinstance(what, bytes):
                info = tarfile.TarInfo(name.lstrip("/"))
                info.size, info.mode = len(what), 0o644
                t.addfile(info, io.BytesIO(what))
            else:
                t.add(what, name.lstrip("/"))


def wait_for(what, ok, seconds=60):
    end = time.monotonic() + seconds
    while not ok():
        if time.monotonic() > end:
            sys.exit("no answer within %d s: %s" % (seconds, what))
        time.sleep(0.1)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Subject:
    def __init__(self, name, argv, env, mark):
        self.name, self.argv, self.mark = name, argv, mark
        self.port = free_port()
        self.env = dict(os.environ, LANGBOT_BOX_CONTROL_TOKEN=TOKEN, LANGBOT_BOX_TRUSTED_INSTANCE_UUID=INSTANCE, **env)

    def start(self, dir):
        self.log = open(os.path.join(dir, self.name.replace(" ", "-").replace(",", "") + ".log"), "wb")
        self.process = subprocess.Popen(self.argv + ["box", "--host", "127.0.0.1", "--ws-control-port", str(self.port)],
                                        cwd=dir, env=self.env, stdout=self.log, stderr=self.log, start_new_session=True)
        wait_for(self.name, self.ready)

    def ready(self):
        try:
            with urllib.request.urlopen("http://127.0.0.1:%d/readyz" % self.port, timeout=5) as r:
                return r.status == 200
        except OSError:
            return False

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    async def connect(self):
        """The client, and what ends it."""
        got, over = asyncio.get_running_loop().create_future(), asyncio.Event()

        async def failed(_, e):
            got.set_exception(e or OSError("no connection"))

        async def use(connection):
            handler = Handler(connection)
            task = asyncio.create_task(handler.run())
            client = ActionRPCBoxClient(logger=logging.getLogger("bench"))
            client.set_handler(handler)
            got.set_result(client)
            await over.wait()
            await handler.close()
            task.cancel()

        runtime = WebSocketClientController("ws://127.0.0.1:%d/rpc/ws" % self.port, failed, additional_headers={
            "X-LangBot-Instance-Id": INSTANCE, "X-LangBot-Box-Control-Token": TOKEN})
        task = asyncio.create_task(runtime.run(use))
        client = await asyncio.wait_for(got, 30)
        await client.init({"enabled": True, "limits": LIMITS})

        async def leave():
            over.set()
            with contextlib.suppress(Exception):
                await asyncio.wait_for(task, 10)

        return client, leave

    def memory(self):
        """PSS in bytes of the processes that are this subject's, and how many."""
        parents, mine = {}, set()
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with contextlib.suppress(OSError):
                stat = open("/proc/%d/stat" % pid).read()
                parents[pid] = int(stat.rsplit(")", 1)[1].split()[1])
                line = open("/proc/%d/cmdline" % pid, "rb").read()
                if pid == self.process.pid or self.mark in line or self.mark == os.readlink("/proc/%d/exe" % pid).encode():
                    mine.add(pid)
        grew = True
        while grew:
            more = {p for p, parent in parents.items() if parent in mine and p not in mine}
            grew = bool(more)
            mine |= more
        total = 0
        for pid in mine - {os.getpid()}:
            with contextlib.suppress(OSError):
                for line in open("/proc/%d/smaps_rollup" % pid):
                    if line.startswith("Pss:"):
                        total += int(line.split()[1]) * 1024
        return total, len(mine)


async def trips(subjects):
    """Round trips of box_exec in one session each, taking turns."""
    clients, seen = {}, {s.name: [] for s in subjects}
    for s in subjects:
        clients[s.name] = await s.connect()
    for i in range(-3, args.n):
        for s in subjects:
            began = time.perf_counter()
            r = await clients[s.name][0].execute(BoxSpec(session_id="trip", cmd="echo hi", image=IMAGE), action_context=CTX)
            took = time.perf_counter() - began
            if r.stdout != "hi":
                sys.exit("%s: %r" % (s.name, r))
            if i >= 0:
                seen[s.name].append(took * 1000)
    for client, leave in clients.values():
        await client.delete_session("trip", action_context=CTX)
        await leave()
    return seen


async def idle(s):
    """What sessions with processes that wait cost."""
    client, leave = await s.connect()
    before, _ = s.memory()
    began = time.monotonic()
    for i in range(args.sessions):
        name = "idle%d" % i
        await client.create_session(BoxSpec(session_id=name, image=IMAGE), action_context=CTX)
        for k in range(args.processes):
            await client.start_managed_process(name, BoxManagedProcessSpec(process_id="p%d" % k, command="cat"), action_context=CTX)
    took = time.monotonic() - began
    await asyncio.sleep(5)
    status = await client.get_status(action_context=CTX)
    if status["active_sessions"] != args.sessions:
        sys.exit("%s: %r" % (s.name, status))
    after, processes = s.memory()
    began = time.monotonic()
    await asyncio.gather(*(client.delete_session("idle%d" % i, action_context=CTX) for i in range(args.sessions)), return_exceptions=True)
    gone = time.monotonic() - began
    await leave()
    return {"before": before, "after": after, "processes": processes, "took": took, "gone": gone}


def docker(dir):
    """A Docker daemon of our own, with the image that the reference asks for."""
    env = {"DOCKER_HOST": "unix://" + dir + "/docker.sock", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin:" + os.environ["PATH"]}
    log = open(dir + "/dockerd.log", "wb")
    daemon = subprocess.Popen(
        ["dockerd", "--data-root", dir + "/data", "--exec-root", dir + "/exec", "--pidfile", dir + "/docker.pid", "--host", env["DOCKER_HOST"],
         "--iptables=false", "--ip6tables=false", "--bridge=none"], stdout=log, stderr=log, start_new_session=True, env=dict(os.environ, **env))
    run = lambda *a: subprocess.run(["docker", *a], env=dict(os.environ, **env), capture_output=True, text=True)
    wait_for("dockerd", lambda: run("info").returncode == 0)
    image(dir + "/image.tar")
    made = run("import", dir + "/image.tar", IMAGE)
    if made.returncode:
        sys.exit(made.stderr)
    about = run("info", "--format", "{{.ServerVersion}}, {{.Driver}}, {{.DefaultRuntime}}, cgroup v{{.CgroupVersion}}").stdout.strip()

    def stop():
        left = run("ps", "-aq").stdout.split()
        if left:
            run("rm", "-f", *left)
        daemon.terminate()
        daemon.wait(120)

    return env, about, stop


def report(seen, cost, about, load):
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    reference = seen["lbp box, docker"]
    out = ["# LangBot's box, through LangBot's own client", "",
           "Written by `bench/langbot.py`. %s, %d processors, Linux %s; langbot-plugin %s, Docker %s. Load average %.0f at the begin, %.0f at the end." % (
               model, os.cpu_count(), platform.release(), version("langbot-plugin"), about, load, os.getloadavg()[0]), "",
           "## box_exec of `echo hi` in a session that is there", "",
           "%d rounds in which every subject had one turn; milliseconds, at the client." % args.n, "",
           "| subject | median | p95 | least | of the reference, by the medians | by the least |", "|---|---:|---:|---:|---:|---:|"]
    for name, all in seen.items():
        p95 = sorted(all)[int(len(all) * 0.95) - 1]
        median = statistics.median(all)
        out.append("| %s | %.1f | %.1f | %.1f | 1/%.1f | 1/%.1f |" % (name, median, p95, min(all), statistics.median(reference) / median, min(reference) / min(all)))
    out += ["", "## %d sessions of %d managed processes each that wait" % (args.sessions, args.processes), "",
            "The processes are `cat`. PSS of every process that the subject started, the runtime and its daemon included, in 10⁶ bytes,",
            "five seconds after the last was started; `made` and `gone` are seconds for all of them.", "",
            "| subject | runtime alone | all | one session | host processes | made | gone |", "|---|---:|---:|---:|---:|---:|---:|"]
    for name, c in cost.items():
        out.append("| %s | %.0f | %.0f | %.1f | %d | %.0f | %.0f |" % (
            name, c["before"] / 1e6, c["after"] / 1e6, (c["after"] - c["before"]) / 1e6 / args.sessions, c["processes"], c["took"], c["gone"]))
    return "\n".join(out) + "\n"


def main():
    dir, load = tempfile.mkdtemp(prefix="lbbench-"), os.getloadavg()[0]
    os.chmod(dir, 0o755)
    stops = [lambda: shutil.rmtree(dir, ignore_errors=True)]
    try:
        env, about, stop = docker(dir)
        stops.append(stop)
        subjects = [Subject("lbp box, docker", [sys.executable, "-m", "langbot_plugin.cli.__init__"], env, dir.encode())]
        for engine in "gvisor", "native":
            program = os.path.join(dir, "cloche-" + engine)
            shutil.copy(args.cloche, program)
            subjects.append(Subject("cloche box, " + engine, [program], {"CLOCHE_HOME": os.path.join(dir, engine), "BOX_BACKEND": engine}, program.encode()))
        for s in subjects:
            s.start(dir)
            stops.append(s.stop)
        seen = asyncio.run(trips(subjects))
        while len(stops) > 2:
            stops.pop()()
        cost = {}
        for s in subjects:
            s.start(dir)
            try:
                cost[s.name] = asyncio.run(idle(s))
            finally:
                s.stop()
        text = report(seen, cost, about, load)
        if args.out:
            with open(args.out, "w") as f:
                f.write(text)
        print(text)
    finally:
        while stops:
            stops.pop()()


main()
