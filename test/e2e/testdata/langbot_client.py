"""Drives a box runtime with LangBot's own client and prints what came of it.

python3 langbot_client.py WORKSPACE PORT all|before|after     over WebSocket
python3 langbot_client.py WORKSPACE PORT service              the same, whose engine has no network
python3 langbot_client.py WORKSPACE PORT stdio PROGRAM        starts the runtime itself

The environment has the token and the instance as for the runtime. Each line begins
with "ok" or with "FAILED"; the last is "done".
"""

import asyncio
import glob
import io
import logging
import os
import sys
import zipfile

from langbot_plugin.box.client import ActionRPCBoxClient
from langbot_plugin.box.models import BoxManagedProcessSpec, BoxSpec
from langbot_plugin.entities.io.actions.enums import CommonAction
from langbot_plugin.runtime.io.controllers.stdio.client import StdioClientController
from langbot_plugin.runtime.io.controllers.ws.client import WebSocketClientController
from langbot_plugin.runtime.io.handler import Handler

import websockets

try:
    from langbot_plugin.entities.io.context import ActionContext
except ImportError:  # before 0.5: no headers, and no workspaces
    ActionContext = None

workspace, port, mode = sys.argv[1:4]
http = "http://127.0.0.1:" + port
headers, ctx = {}, None
if ActionContext:
    instance, token = os.environ["LANGBOT_BOX_TRUSTED_INSTANCE_UUID"], os.environ["LANGBOT_BOX_CONTROL_TOKEN"]
    headers = {"X-LangBot-Instance-Id": instance, "X-LangBot-Box-Control-Token": token}
    ctx = ActionContext(instance_uuid=instance, workspace_uuid=workspace, placement_generation=1)


class Plain:
    """A client before 0.5, with the methods of a later one."""

    def __init__(self, client):
        self.client = client

    def __getattr__(self, name):
        method = getattr(self.client, name)
        return lambda *args, action_context=None, **more: method(*args, **more)


def check(what, ok, seen=None):
    print(("ok " if ok else "FAILED ") + what, "" if ok else repr(seen), flush=True)


async def refused(what, word, call):
    try:
        seen = await call
    except Exception as e:  # the client's own classes
        check(what, type(e).__name__ == word, e)
        return
    check(what, False, seen)


def spec(cmd="", **more):
    return BoxSpec(session_id=more.pop("session_id", "s1"), cmd=cmd, **more)


async def relay(client, session="s1"):
    target = client.get_managed_process_websocket_url(session, http, "echo", action_context=ctx)
    more = dict(headers)
    if headers:
        more["X-LangBot-Workspace-Id"], more["X-LangBot-Placement-Generation"] = workspace, "1"
    async with websockets.connect(target, additional_headers=more, subprotocols=["mcp"], max_size=None) as ws:
        await ws.send("hello")
        check("a line", await asyncio.wait_for(ws.recv(), 60) == "hello")
        check("the subprotocol", ws.subprotocol == "mcp", ws.subprotocol)
        large = "x" * 300_000
        await ws.send(large)
        check("a large line in one message", await asyncio.wait_for(ws.recv(), 60) == large)
        await ws.send("one\ntwo")
        got = [await asyncio.wait_for(ws.recv(), 60) for _ in range(2)]
        check("two lines are two messages", got == ["one", "two"], got)


async def drive(connection):
    handler = Handler(connection)
    task = asyncio.create_task(handler.run())
    await handler.call_action(CommonAction.PING, {})
    client = ActionRPCBoxClient(logger=logging.getLogger("t"))
    client.set_handler(handler)
    if not ActionContext:
        client = Plain(client)
    # As LangBot's own configuration has it.
    local = {"host_root": "./data/box", "default_workspace": "", "allowed_mount_roots": ["./data/box", "/tmp"]}
    await client.init({"enabled": True, "backend": "local", "local": local, "e2b": {"api_key": ""}})
    await {"before": before, "after": after}.get(mode, everything)(client, handler)
    await handler.close()
    task.cancel()
    print("done", flush=True)


async def before(client, _):
    r = await client.execute(spec("echo kept > /workspace/f", session_id="p", persistent=True), action_context=ctx)
    check("a persistent session", r.exit_code == 0, r)
    p = await client.start_managed_process("p", BoxManagedProcessSpec(process_id="echo", command="cat"), action_context=ctx)
    check("a process in it", p.status.value == "running", p)


async def after(client, _):
    r = await client.execute(spec("cat /workspace/f", session_id="p", persistent=True), action_context=ctx)
    check("the session is there", r.stdout == "kept", r)
    p = await client.get_managed_process("p", "echo", action_context=ctx)
    check("and so is its process", p.status.value == "running", p)
    await relay(client, "p")
    await client.delete_session("p", action_context=ctx)


async def skills(client):
    if not hasattr(client, "list_skills"):
        return  # this version of the client has no skills any more
    text = "printf -- '---\\nname: made\\ndescription: d\\n---\\n\\nDo it.\\n'"
    r = await client.execute(spec("mkdir -p /workspace/made && " + text + " > /workspace/made/SKILL.md"), action_context=ctx)
    made = glob.glob(os.path.join(os.environ["BOX__LOCAL__HOST_ROOT"], "default", "tenants", "*", "made"))
    check("a skill in the workspace", r.exit_code == 0 and len(made) == 1, (r, made))
    seen = await client.scan_skill_directory(made[0], action_context=ctx)
    check("it is scanned there", (seen["name"], seen["package_root"]) == ("made", made[0]), seen)
    got = await client.create_skill({"name": "made", "package_root": seen["package_root"]}, action_context=ctx)
    check("and made a skill", got["instructions"].strip() == "Do it.", got)
    await client.delete_skill("made", action_context=ctx)
    await client.execute(spec("rm -r /workspace/made"), action_context=ctx)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as z:
        z.writestr("pkg/SKILL.md", "---\nname: zed\ndescription: d\nlicense: MIT\n---\n\nDo it.\n")
        z.writestr("pkg/data.bin", os.urandom(2_000_000))
    seen = await client.preview_skill_zip(packed.getvalue(), "my pkg.zip", action_context=ctx)
    check("a preview", len(seen) == 1 and seen[0]["source_path"] == "" and seen[0]["package_root"].endswith("/my-pkg-upload"), seen)
    made = await client.install_skill_zip(packed.getvalue(), "my pkg.zip", action_context=ctx)
    check("an installed skill", [s["name"] for s in made] == ["zed"], made)
    await client.update_skill("zed", {"description": "other"}, action_context=ctx)
    got = await client.get_skill("zed", action_context=ctx)
    check("a changed skill", got["description"] == "other" and got["instructions"].strip() == "Do it.", got)
    text = await client.read_skill_file("zed", "SKILL.md", action_context=ctx)
    check("its other keys stay", "license: MIT" in text["content"], text)
    await refused("a file outside of it", "BoxValidationError", client.read_skill_file("zed", "../x", action_context=ctx))
    mount = {"host_path": got["package_root"], "mount_path": "/workspace/.skills/zed", "mode": "rw"}
    r = await client.execute(spec("cat /workspace/.skills/zed/SKILL.md", session_id="skilled", extra_mounts=[mount]), action_context=ctx)
    check("a session with it", "Do it." in r.stdout, r)
    await client.delete_session("skilled", action_context=ctx)
    await client.delete_skill("zed", action_context=ctx)
    check("a deleted skill", await client.list_skills(action_context=ctx) == [])


def zipped(*members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        for name, content in members:
            z.writestr(name, content)
    return out.getvalue()


async def hostile_skills(client):
    if not hasattr(client, "list_skills") or mode != "all":
        return
    skill = ("SKILL.md", "---\nname: bad\ndescription: d\n---\n\nx\n")
    link = zipfile.ZipInfo("passwd")
    link.external_attr = 0o120777 << 16
    for what, packed in {
        "a member above the archive": zipped(skill, ("../x", "x")),
        "one above it with backslashes": zipped(skill, ("..\\x", "x")),
        "an absolute member": zipped(skill, ("/tmp/x", "x")),
        "a symlink": zipped(skill, (link, "/etc/passwd")),
        "a bomb by its ratio": zipped(skill, ("zeros", bytes(8 << 20))),
        # It takes seconds to make, in which the connection has to be kept.
        "100,000 members": await asyncio.to_thread(zipped, skill, *((str(i), "") for i in range(100_000))),
        "no zip": b"PK nothing",
    }.items():
        await refused(what, "BoxValidationError", client.preview_skill_zip(packed, "bad.zip", action_context=ctx))
    await refused("and it is not installed either", "BoxValidationError", client.install_skill_zip(zipped(skill, ("../x", "x")), "bad.zip", action_context=ctx))
    await refused("20 MiB and more", "ActionCallError", client.preview_skill_zip(os.urandom((20 << 20) + 1), "bad.zip", action_context=ctx))
    check("nothing of them is there", await client.list_skills(action_context=ctx) == [])
    # 20 MiB less a little come whole, and lie where LangBot's configuration says.
    await client.init({"local": {"skills_root": os.path.join(os.getcwd(), "elsewhere")}})
    packed = zipped(("SKILL.md", "---\nname: big\ndescription: d\n---\n\nDo it.\n"), ("a", os.urandom(10_000_000)), ("b", os.urandom(10_000_000)))
    made = await client.install_skill_zip(packed, "big.zip", action_context=ctx)
    root = made[0]["package_root"]
    check("a large skill below skills_root", root.startswith(os.path.join(os.getcwd(), "elsewhere", "tenants")) and os.path.isfile(root + "/b"), made)
    mount = {"host_path": root, "mount_path": "/workspace/.skills/big", "mode": "rw"}
    r = await client.execute(spec("cd .skills/big && wc -c < a && rm SKILL.md && ln -s /etc/shadow SKILL.md", session_id="planted", extra_mounts=[mount]), action_context=ctx)
    check("a sandbox puts a symlink in its place", (r.stdout, r.exit_code) == ("10000000", 0), r)
    check("nobody follows it", await client.list_skills(action_context=ctx) == [] and await client.get_skill("big", action_context=ctx) is None)
    await client.delete_session("planted", action_context=ctx)
    await client.init({"local": {}})


async def everything(client, handler):
    info = await client.get_backend_info()
    check("a backend", info["available"], info)
    r = await client.execute(spec("echo hi; echo err >&2; pwd"), action_context=ctx)
    check("an exec", (r.stdout, r.stderr, r.exit_code, r.status.value) == ("hi\n/workspace", "err", 0, "completed"), r)
    r = await client.execute(spec("exit 3"), action_context=ctx)
    check("an exit status is a result", r.exit_code == 3, r)
    r = await client.execute(spec("mkdir -p /workspace/d; cat > f <<X\n<&>\nX\ncat f", workdir="/workspace/d"), action_context=ctx)
    check("a heredoc in a directory that is made", r.stdout == "<&>", r)
    r = await client.execute(spec("echo $A", env={"A": "ü"}), action_context=ctx)
    check("an environment", r.stdout == "ü", r)
    r = await client.execute(spec("head -c 3000000 /dev/zero | tr '\\0' x"), action_context=ctx)
    check("clipped output", len(r.stdout) < 1_200_000 and "clipped" in r.stdout[-200:], len(r.stdout))
    r = await client.execute(spec("printf %s '" + "x" * 455_000 + "' | wc -c; cat"), action_context=ctx)
    check("a long command", (r.stdout.strip(), r.exit_code) == ("455000", 0), (r.stdout[-200:], r.stderr[-200:]))
    r = await client.execute(spec("echo before; sleep 60", timeout_sec=1), action_context=ctx)
    check("a timeout", (r.status.value, r.exit_code, r.stdout) == ("timed_out", None, "before"), r)
    await refused("another image is a conflict", "BoxSessionConflictError", client.execute(spec("true", memory_mb=256), action_context=ctx))
    await refused("an empty command", "BoxValidationError", client.execute(spec("  "), action_context=ctx))
    await refused("a directory outside of the roots", "BoxValidationError", client.execute(spec("true", session_id="s2", host_path="/var"), action_context=ctx))
    slow = asyncio.create_task(client.execute(spec("sleep 5; echo slow"), action_context=ctx))
    r = await client.execute(spec("echo quick"), action_context=ctx)
    check("an exec is not held up by another", r.stdout == "quick" and not slow.done(), r)
    check("nor the other by it", (await slow).stdout == "slow")
    # Nothing private may be reached: it is refused before it leaves the machine.
    connect = "import socket; socket.create_connection(('10.255.255.1', 80), 5)"
    networked = spec('echo own >&2; python3 -c "' + connect + '"', session_id="net", network="on")
    if mode == "service":
        await refused("a network that is under no rules", "BoxValidationError", client.execute(networked, action_context=ctx))
    else:
        r = await client.execute(networked, action_context=ctx)
        check("a connection that is not let out is told of last", "10.255.255.1:80 was not let out" in r.stderr.splitlines()[-1], r)
        await client.delete_session("net", action_context=ctx)
    p = await client.start_managed_process("s1", BoxManagedProcessSpec(process_id="echo", command="sh", args=["-c", "echo ready >&2; exec cat"], env={"K": "v"}), action_context=ctx)
    check("a process", (p.process_id, p.status.value, p.env_keys) == ("echo", "running", ["K"]), p)
    await relay(client)
    p = await client.get_managed_process("s1", "echo", action_context=ctx)
    check("it outlives its relay", p.status.value == "running" and p.stderr_preview.strip() == "ready", p)
    status = await client.get_status(action_context=ctx)
    check("the status counts it", (status["active_sessions"], status["managed_processes"]) == (1, 1), status)
    capacity = status["capacity"]
    check("and says how many more there may be", capacity["used"] == 1 and 0 < capacity["remaining"] < capacity["limit"], capacity)
    if hasattr(client, "get_storage_analysis"):
        seen = await client.get_storage_analysis(action_context=ctx)
        check("what it occupies", seen["active_sessions"] == 1 and seen["size_bytes"] >= 0, seen)
    await relay(client)
    await client.stop_managed_process("s1", "echo", action_context=ctx)
    await refused("it is gone", "BoxManagedProcessNotFoundError", client.get_managed_process("s1", "echo", action_context=ctx))
    found = await client.get_sessions(action_context=ctx)
    check("the sessions", [s["session_id"] for s in found] == ["s1"], found)
    await skills(client)
    await hostile_skills(client)
    if not ActionContext:
        return
    next_ctx = ActionContext(instance_uuid=instance, workspace_uuid=workspace, placement_generation=2)
    check("a new generation has none", await client.get_sessions(action_context=next_ctx) == [])
    await refused("the old generation is stale", "BoxError", client.get_sessions(action_context=ctx))
    r = await client.execute(spec("echo kept > /workspace/f; cat /workspace/f", session_id="keep", persistent=True), action_context=next_ctx)
    check("a persistent session", r.stdout == "kept", r)
    await client.shutdown()
    client.set_handler(handler)
    r = await client.execute(spec("cat /workspace/f", session_id="keep", persistent=True), action_context=next_ctx)
    check("it outlives box_shutdown", r.stdout == "kept", r)
    await client.delete_session("keep", action_context=next_ctx)
    await refused("a session that is gone", "BoxSessionNotFoundError", client.get_session("keep", action_context=next_ctx))


async def main():
    async def failed(_, e):
        print("FAILED to connect", e, flush=True)

    if mode == "stdio":
        runtime = StdioClientController(command=sys.argv[4], args=["box", "-s", "--ws-control-port", port, "--host", "127.0.0.1"], env=dict(os.environ))
    else:
        more = {"additional_headers": headers} if headers else {}
        runtime = WebSocketClientController("ws://127.0.0.1:" + port + "/rpc/ws", failed, **more)
    await asyncio.wait_for(runtime.run(drive), 400)


asyncio.run(main())
