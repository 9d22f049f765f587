"""Has a whole LangBot use a box runtime, and prints what came of it.

python3 langbot_app.py URL DIR

URL is LangBot's own, where nobody has registered yet. DIR is a directory of the host
below an allowed root, which is made the place of an MCP server. Each line begins with
"ok" or with "FAILED"; the last is "done".
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request

base, place = sys.argv[1].rstrip("/") + "/api/v1", sys.argv[2]
token = ""

SERVER = '''import json, os, sys
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m:
        continue
    r = {}
    if m["method"] == "initialize":
        r = {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    elif m["method"] == "tools/list":
        where = sys.executable + " in " + os.getcwd() + " " + "x" * 100000
        r = {"tools": [{"name": "where", "description": where, "inputSchema": {"type": "object"}}]}
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
'''


def call(method, path, data=None):
    request = urllib.request.Request(base + path, method=method, data=None if data is None else json.dumps(data).encode())
    request.add_header("content-type", "application/json")
    if token:
        request.add_header("authorization", "Bearer " + token)
    try:
        with urllib.request.urlopen(request, timeout=120) as r:
            return json.load(r).get("data")
    except urllib.error.HTTPError as e:
        return {"error": e.code, "body": e.read().decode()[:1000]}


def check(what, ok, seen=None):
    print(("ok " if ok else "FAILED ") + what, "" if ok else repr(seen)[:2000], flush=True)


who = {"user": "a@example.org", "password": "Password-1234"}
call("POST", "/user/init", who)
token = call("POST", "/user/auth", who)["token"]
status = call("GET", "/box/status")
check("its status of the box", status.get("available") and status["backend"]["available"], status)

# What makes the environment of the server is an exec of LangBot's. The package pip that
# lies there takes the place of the one that asks a registry.
os.makedirs(os.path.join(place, "pip"))
for name, text in {"server.py": SERVER, "requirements.txt": "", "pip/__init__.py": "", "pip/__main__.py": "print('nothing to install')\n"}.items():
    with open(os.path.join(place, name), "w") as f:
        f.write(text)
made = call("POST", "/mcp/servers", {"name": "s", "mode": "stdio", "enable": True, "extra_args": {
    "command": "python", "args": [os.path.join(place, "server.py")], "env": {}, "box": {"host_path": place, "startup_timeout_sec": 300}}})
check("an MCP server", "uuid" in made, made)
seen, end = {}, time.monotonic() + 400
while seen.get("status") != "connected" and time.monotonic() < end:
    time.sleep(2)
    seen = (call("GET", "/mcp/servers/s").get("server") or {}).get("runtime_info") or {}
check("it is connected", seen.get("status") == "connected", seen)
where = [t["description"] for t in seen.get("tools", [])]
check("it runs from the environment that was made in the sandbox", len(where) == 1 and where[0].startswith("/workspace/.mcp/") and "/.venv/bin/python" in where[0], where)
check("and a long line of it came whole", where and where[0].endswith("x" * 1000), len(where))
sessions = call("GET", "/box/sessions")
check("its session", [s["session_id"] for s in sessions] == ["mcp-shared"], sessions)
status = call("GET", "/box/status")
check("and its process", (status["active_sessions"], status["managed_processes"]) == (1, 1), status)
print("done", flush=True)
