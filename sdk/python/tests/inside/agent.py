"""An agent with only the standard library: it runs in a sandbox of any image with Python.

Its one argument is JSON: endpoint, model, messages, and the addresses of MCP servers. Its key is in
AGENT_KEY. It streams each answer of the model's, calls the tools that the model wants, and writes what
it saw to report.json.
"""

import json
import os
import socket
import sys
import urllib.request

TURNS = 8


def post(url, body, headers):
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
    return urllib.request.urlopen(request, timeout=120)


def rpc(url, method, params):
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    with post(url, body, headers) as answer:
        return json.load(answer)["result"]


def ask(endpoint, model, messages, tools):
    """One turn of the model, streamed: the message, and how many events it came in."""
    body = {"model": model, "messages": messages, "stream": True}
    if tools:
        body["tools"] = tools
    text, calls, events = "", {}, 0
    with post(
        endpoint + "/chat/completions", body, {"Authorization": "Bearer " + os.environ["AGENT_KEY"]}
    ) as answer:
        for line in answer:
            line = line.strip()
            if not line.startswith(b"data:") or line.endswith(b"[DONE]"):
                continue
            events += 1
            for choice in json.loads(line[5:])["choices"]:
                delta = choice["delta"]
                text += delta.get("content") or ""
                for call in delta.get("tool_calls") or ():
                    kept = calls.setdefault(call["index"], {"id": "", "name": "", "arguments": ""})
                    kept["id"] += call.get("id") or ""
                    function = call.get("function") or {}
                    kept["name"] += function.get("name") or ""
                    kept["arguments"] += function.get("arguments") or ""
    message = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in calls.values()
        ]
    return message, events


def outside():
    """What becomes of a connection to another machine, and of a name."""
    seen = []
    for step in (
        lambda: socket.create_connection(("192.0.2.1", 80), 5),
        lambda: socket.getaddrinfo("name.example", 80),
    ):
        try:
            step()
            seen.append("reached")
        except OSError:
            seen.append("refused")
    return seen


def main():
    told = json.loads(sys.argv[1])
    tools, servers = [], {}
    for url in told["mcp"].values():
        for tool in rpc(url, "tools/list", {})["tools"]:
            servers[tool["name"]] = url
            function = {
                "name": tool["name"],
                "description": tool.get("description", ""),
                "parameters": tool["inputSchema"],
            }
            tools.append({"type": "function", "function": function})
    messages, total = told["messages"], 0
    for _ in range(TURNS):
        message, events = ask(told["endpoint"], told["model"], messages, tools)
        total += events
        messages.append(message)
        if not message.get("tool_calls"):
            break
        for call in message["tool_calls"]:
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
            result = rpc(servers[name], "tools/call", {"name": name, "arguments": arguments})
            messages.append(
                {"role": "tool", "tool_call_id": call["id"], "content": result["content"][0]["text"]}
            )
    report = {"answer": messages[-1]["content"], "events": total, "outside": outside()}
    with open("report.json", "w") as f:
        json.dump(report, f)


main()
