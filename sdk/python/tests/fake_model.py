"""A model server that knows one conversation and refuses what the real ones refuse."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KNOWN = {
    "model",
    "messages",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "seed",
}


class FakeModel:
    """``http://127.0.0.1:PORT/v1``. Asked for a capital, it looks that up with the tool that it is given;
    told the result, it says so. Of other questions it says that they are heard."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.requests: list[dict[str, Any]] = []
        self.refused: list[str] = []
        self.hung = threading.Event()
        """A request that is never answered has come."""
        self.left = threading.Event()
        """The client is gone."""
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                pass

            def do_POST(self) -> None:
                model._answer(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> "FakeModel":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, h: BaseHTTPRequestHandler) -> None:
        raw = h.rfile.read(int(h.headers["Content-Length"]))
        reason = self._refuses(h, raw)
        if reason:
            self.refused.append(reason)
            self._send(h, 400, "application/json", json.dumps({"error": {"message": reason}}).encode())
            return
        body = json.loads(raw)
        self.requests.append(body)
        if body["messages"][-1]["content"] == "hang":
            self.hung.set()
            h.connection.settimeout(60)
            try:
                h.connection.recv(1)
            except OSError:
                return
            self.left.set()
            return
        message, finish = self._says(body)
        if not body.get("stream"):
            self._send(h, 200, "application/json", json.dumps(self._whole(body, message, finish)).encode())
            return
        h.send_response(200)
        h.send_header("Content-Type", "text/event-stream")
        h.send_header("Transfer-Encoding", "chunked")
        h.end_headers()
        for event in [*self._events(body, message, finish), "[DONE]"]:
            line = f"data: {event}\n\n".encode()
            h.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            h.wfile.flush()
            time.sleep(0.002)
        h.wfile.write(b"0\r\n\r\n")

    def _refuses(self, h: BaseHTTPRequestHandler, raw: bytes) -> str:
        if h.path != "/v1/chat/completions":
            return f"no such path: {h.path}"
        if h.headers.get_all("Authorization") != [f"Bearer {self.key}"]:
            return "a wrong key"
        twice: list[str] = []

        def strict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            names = [name for name, _ in pairs]
            twice.extend(name for name in set(names) if names.count(name) > 1)
            return dict(pairs)

        body = json.loads(raw, object_pairs_hook=strict)
        strange = sorted(set(body) - KNOWN) + twice
        return f"unknown or repeated: {', '.join(strange)}" if strange else ""

    def _says(self, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
        last = body["messages"][-1]
        if last["role"] == "tool":
            return {"role": "assistant", "content": f"It is {last['content']}."}, "stop"
        if "capital of " in last["content"] and body.get("tools"):
            country = last["content"].partition("capital of ")[2].rstrip("?")
            function = {
                "name": body["tools"][0]["function"]["name"],
                "arguments": json.dumps({"country": country}),
            }
            call = {"id": f"call-{len(self.requests)}", "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
        return {"role": "assistant", "content": f"I heard: {last['content']}"}, "stop"

    @staticmethod
    def _whole(body: dict[str, Any], message: dict[str, Any], finish: str) -> dict[str, Any]:
        return {
            "id": "c1",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        }

    @staticmethod
    def _events(body: dict[str, Any], message: dict[str, Any], finish: str) -> list[str]:
        deltas: list[dict[str, Any]] = [{"role": "assistant"}]
        for call in message.get("tool_calls", ()):
            deltas.append({"tool_calls": [{"index": 0, **call}]})
        deltas += [{"content": word + " "} for word in (message["content"] or "").split(" ") if word]
        events = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        events.append({"index": 0, "delta": {}, "finish_reason": finish})
        head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        out = [json.dumps({**head, "choices": [event]}) for event in events]
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        out.append(json.dumps({**head, "choices": [], "usage": usage}))
        return out

    @staticmethod
    def _send(h: BaseHTTPRequestHandler, status: int, kind: str, body: bytes) -> None:
        h.send_response(status)
        h.send_header("Content-Type", kind)
        h.send_header("Content-Length", str(len(body)))
        h.end_headers()
        h.wfile.write(body)
