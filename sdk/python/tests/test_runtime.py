"""The runtime against a daemon that does what a real one rarely does."""

import asyncio
import json
import tempfile
import unittest
from collections.abc import Callable
from typing import Any

import verifiers.v1 as vf
from aiohttp import WSMsgType, web

from cloche.verifiers import ApiError, ClocheConfig, ClocheRuntime
from cloche.verifiers.api import Api
from cloche.verifiers.bridge import Bridge

# Every name that a body of the runtime's may have, by route; a daemon refuses all others.
KNOWN = {
    "hold": {"image", "cwd", "network", "transient", "labels", "endpoints", "profile", "egress", "limits"},
    "endpoint": {"name", "listen", "target", "http", "limits"},
    "processes": {"exec_id", "argv", "env", "cwd", "user", "on_full", "open_stdin"},
    "signal": {"signal", "scope"},
    "egress": {"allow", "deny", "remove"},
}


def strict(raw: bytes | str, known: set[str]) -> dict[str, Any]:
    """A body of JSON in which no name is unknown, and none, at any depth, is there twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        assert len(names) == len(set(names)), f"repeated: {names}"
        return dict(pairs)

    body = json.loads(raw, object_pairs_hook=once)
    assert set(body) <= known, f"unknown: {set(body) - known}"
    return body


class FakeDaemon:
    """One sandbox, one program that prints and ends. `on` replaces what a route does."""

    def __init__(self) -> None:
        self.on: dict[str, Callable[[web.Request], Any]] = {}
        self.calls: list[str] = []
        self.started: list[str] = []
        self.rules: set[str] = set()
        self.gone = asyncio.Event()
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", self._any)
        self._runner = web.AppRunner(app, shutdown_timeout=1)

    async def start(self, path: str) -> None:
        await self._runner.setup()
        await web.UnixSite(self._runner, path).start()

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _any(self, request: web.Request) -> web.StreamResponse:
        last = request.path.rstrip("/").rpartition("/")[2]
        name = f"{request.method} {last}"
        self.calls.append(name)
        if special := self.on.get(name):
            answer = await special(request)
            if answer is not None:
                return answer
        if last == "hold":
            return await self._hold(request)
        if last == "attach":
            return await self._attach(request)
        if last == "processes":
            body = strict(await request.read(), KNOWN["processes"])
            self.started.append(body["exec_id"])
            return web.json_response({"exec_id": body["exec_id"]}, status=201)
        if last == "signal":
            strict(await request.read(), KNOWN["signal"])
        if last == "egress":
            if request.method == "PATCH":
                change = strict(await request.read(), KNOWN["egress"])
                self.rules |= set(change.get("allow", ()))
                self.rules -= set(change.get("remove", ()))
            return web.json_response({"network": "on", "egress": {"allow": sorted(self.rules)}})
        if request.method == "GET" and last == "sb-fake":
            return web.json_response({"id": "sb-fake", "state": "running"})
        return web.Response(status=204)

    async def _hold(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        first = strict(await socket.receive_str(), {"hold"})
        spec = strict(json.dumps(first["hold"]), KNOWN["hold"])
        for endpoint in spec["endpoints"]:
            strict(json.dumps(endpoint), KNOWN["endpoint"])
        self.rules = set(spec.get("egress", {}).get("allow", ()))
        await socket.send_json({"step": "image"})
        await socket.send_json({"sandbox": {"id": "sb-fake"}})
        async for message in socket:
            assert message.type is not WSMsgType.TEXT, "a held sandbox takes no second message"
        self.gone.set()
        return socket

    async def _attach(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        asked = strict(await socket.receive_str(), {"attach"})["attach"]
        await socket.send_json({"started": {"exec_id": "x"}})
        said = b"hello world"[asked["since"] :]
        await socket.send_bytes(b"\x01" + asked["since"].to_bytes(8, "big") + said)
        await socket.send_json({"exit": {"exit_code": 0}})
        await socket.close()
        return socket


def refused(code: str, status: int) -> web.Response:
    return web.json_response({"error": {"code": code, "message": "as was wished", "hint": "h"}}, status=status)


class Faults(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        directory = self.enterContext(tempfile.TemporaryDirectory())
        self.daemon = FakeDaemon()
        path = f"{directory}/s"
        await self.daemon.start(path)
        self.addAsyncCleanup(self.daemon.stop)
        self.host = f"unix://{path}"

    def runtime(self, **config: object) -> ClocheRuntime:
        runtime = ClocheRuntime(ClocheConfig(host=self.host, **config))
        self.addAsyncCleanup(runtime.stop)
        return runtime

    async def test_a_run(self) -> None:
        runtime = self.runtime()
        await runtime.start()
        self.assertEqual(await runtime.run(["x"], {"A": "b"}), vf.ProgramResult(0, "hello world", ""))
        await runtime.stop()
        await asyncio.wait_for(self.daemon.gone.wait(), 30)
        self.assertIn("DELETE sb-fake", self.daemon.calls)

    async def test_every_optional_keyword(self) -> None:
        runtime = self.runtime(
            cpu=1.5, memory=2, disk=1, profile="p", setup_allow=["a.example"], allow=["b.example"]
        )
        await runtime.prepare_setup()
        await runtime.prepare_execution([])
        self.assertEqual(self.daemon.rules, {"b.example"})
        await runtime.with_user("nobody").run(["x"], {})
        live = await runtime.open_process(["x"], {})
        self.assertEqual(await live.wait(), 0)

    async def test_a_program_whose_start_was_lost_runs_once(self) -> None:
        async def lost(request: web.Request) -> web.Response | None:
            if self.daemon.started:
                return None
            self.daemon.started.append(strict(await request.read(), KNOWN["processes"])["exec_id"])
            request.transport.abort()
            return web.Response()

        self.daemon.on["POST processes"] = lost
        runtime = self.runtime()
        await runtime.start()
        self.assertEqual((await runtime.run_program(["x"], {})).stdout, "hello world")
        self.assertEqual(len(self.daemon.started), 2)
        self.assertEqual(len(set(self.daemon.started)), 1, "two programs were started")

    async def test_output_goes_on_where_a_connection_broke(self) -> None:
        broke = []

        async def half(request: web.Request) -> web.StreamResponse | None:
            if broke:
                return None
            broke.append(True)
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            await socket.receive_str()
            await socket.send_json({"started": {"exec_id": "x"}})
            await socket.send_bytes(b"\x01" + (0).to_bytes(8, "big") + b"hello")
            await socket.close()
            return socket

        self.daemon.on["GET attach"] = half
        runtime = self.runtime()
        await runtime.start()
        self.assertEqual((await runtime.run(["x"], {})).stdout, "hello world")

    async def test_a_gap_is_an_error(self) -> None:
        async def gap(request: web.Request) -> web.StreamResponse:
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            await socket.receive_str()
            await socket.send_json({"started": {"exec_id": "x"}})
            await socket.send_json({"gap": {"position": 9, "bytes": 9}})
            await socket.close()
            return socket

        self.daemon.on["GET attach"] = gap
        runtime = self.runtime()
        await runtime.start()
        with self.assertRaisesRegex(vf.SandboxError, "9 bytes"):
            await runtime.run(["x"], {})
        self.assertIn("POST signal", self.daemon.calls, "the program was left running")

    async def test_rules_that_are_not_in_force_stop_the_agent(self) -> None:
        async def ignored(_: web.Request) -> web.Response:
            return web.json_response({"network": "on", "egress": {"allow": ["*"]}})

        self.daemon.on["PATCH egress"] = self.daemon.on["GET egress"] = ignored
        runtime = self.runtime(setup_allow=["*"])
        await runtime.prepare_setup()
        with self.assertRaisesRegex(vf.SandboxError, "not started"):
            await runtime.prepare_execution([])

    async def test_refusals_are_typed(self) -> None:
        async def denied(_: web.Request) -> web.Response:
            return refused("denied", 403)

        async def garbage(_: web.Request) -> web.Response:
            return web.Response(status=500, text="<html>")

        runtime = self.runtime()
        await runtime.start()
        for answer, said in ((denied, "as was wished"), (garbage, "500")):
            self.daemon.on["GET files"] = self.daemon.on["PUT files"] = answer
            self.daemon.on["POST processes"] = answer
            for attempt in (runtime.read("f"), runtime.write("f", b""), runtime.run(["x"], {})):
                with self.assertRaisesRegex(vf.SandboxError, said):
                    await attempt

    async def test_a_daemon_that_leaves_while_it_makes_a_sandbox(self) -> None:
        async def leaves(request: web.Request) -> web.StreamResponse:
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            await socket.receive_str()
            await socket.close()
            return socket

        self.daemon.on["GET hold"] = leaves
        runtime = self.runtime()
        with self.assertRaisesRegex(vf.SandboxError, "left"):
            await runtime.start()
        self.assertFalse(await runtime.alive())

    async def test_a_create_that_fails_late_lets_go(self) -> None:
        async def full(_: web.Request) -> web.Response:
            return refused("quota_exceeded", 507)

        self.daemon.on["POST mkdir"] = full
        runtime = self.runtime()
        with self.assertRaises(vf.SandboxError):
            await runtime.start()
        await asyncio.wait_for(self.daemon.gone.wait(), 30)

    async def test_cancelled_while_it_is_made(self) -> None:
        asked = asyncio.Event()

        async def slow(request: web.Request) -> web.StreamResponse:
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            await socket.receive_str()
            asked.set()
            async for _ in socket:
                pass
            self.daemon.gone.set()
            return socket

        self.daemon.on["GET hold"] = slow
        starting = asyncio.create_task(self.runtime().start())
        await asyncio.wait_for(asked.wait(), 30)
        starting.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await starting
        await asyncio.wait_for(self.daemon.gone.wait(), 30)

    async def test_the_end_of_the_interpreter(self) -> None:
        runtime = self.runtime()
        await runtime.start()
        await asyncio.to_thread(runtime.cleanup)
        await asyncio.to_thread(runtime.cleanup)
        self.assertEqual(self.daemon.calls.count("DELETE sb-fake"), 1)

    async def test_before_and_after_its_life(self) -> None:
        runtime = self.runtime()
        with self.assertRaises(vf.SandboxError):
            await runtime.run(["x"], {})
        with self.assertRaises(vf.SandboxError):
            runtime.host_url("http://127.0.0.1:1/v1")
        self.assertEqual(runtime.host_url("https://api.example/v1"), "https://api.example/v1")
        await runtime.stop()
        with self.assertRaises(vf.SandboxError):
            await runtime.start()

    async def test_no_daemon(self) -> None:
        api = Api("unix:///nowhere/s")
        self.addAsyncCleanup(api.close)
        with self.assertRaises(ApiError) as caught:
            await api.json("GET", "/v1/version")
        self.assertEqual((caught.exception.code, caught.exception.retryable), ("unavailable", True))
        self.assertIn("cloche serve", str(caught.exception))

    async def test_the_token_is_in_no_error(self) -> None:
        api = Api("tcp://127.0.0.1:1", "a-secret-token")
        self.addAsyncCleanup(api.close)
        with self.assertRaises(ApiError) as caught:
            await api.json("GET", "/v1/version")
        self.assertNotIn("a-secret-token", repr(caught.exception))


class Bridges(unittest.IsolatedAsyncioTestCase):
    async def ask(self, base: str, path: str) -> bytes:
        host, _, port = base.removeprefix("http://").partition("/")[0].partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer

    async def test_an_answer_that_breaks_off_does_not_look_whole(self) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel")
            await writer.drain()
            writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.addCleanup(server.close)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Bridge.route("127.0.0.1", 0) as (base, route):
            path = route.path + route.add(url + "/x")
            try:
                answer = await self.ask(base, path)
                self.assertFalse(answer.endswith(b"0\r\n\r\n"))
            except ConnectionResetError:
                pass

    async def test_a_server_that_keeps_connections_does_not_keep_ours(self) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked = await reader.readuntil(b"\r\n\r\n")
            self.assertIn(b"Connection: close\r\n", asked)
            writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.addCleanup(server.close)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Bridge.route("127.0.0.1", 0) as (base, route):
            answer = await self.ask(base, route.path + route.add(url + "/x"))
        self.assertTrue(answer.startswith(b"HTTP/1.1 103"), answer)
        self.assertIn(b"Connection: close\r\n\r\nok", answer)
        self.assertNotIn(b"keep-alive", answer)

    async def test_what_is_not_there(self) -> None:
        async with Bridge.route("127.0.0.1", 0) as (base, route):
            for path in ("/", "/rollout/", "/rollout/guess/0/x", route.path, route.path + "/0/x"):
                self.assertTrue((await self.ask(base, path)).startswith(b"HTTP/1.1 404"), path)
            dead = route.path + route.add("http://127.0.0.1:1/x")
            self.assertTrue((await self.ask(base, dead)).startswith(b"HTTP/1.1 502"))
            async with Bridge.route("127.0.0.1", 0) as (same, other):
                self.assertEqual(same.rpartition("/")[0], base.rpartition("/")[0])
                self.assertNotEqual(other.path, route.path)
            self.assertTrue((await self.ask(base, other.path + "/0/x")).startswith(b"HTTP/1.1 404"))
        with self.assertRaises(ConnectionRefusedError):
            await self.ask(base, "/")

    async def test_only_plain_services_of_this_machine(self) -> None:
        async with Bridge.route("127.0.0.1", 0) as (_, route):
            for url in ("https://127.0.0.1/x", "http://u:p@127.0.0.1/x", "file:///etc/passwd", "http://"):
                with self.assertRaises(ValueError, msg=url):
                    route.add(url)
            self.assertEqual(route.add("http://127.0.0.1:1/v1"), "/0/v1")
            self.assertEqual(route.add("http://127.0.0.1:2/mcp?a=b"), "/1/mcp?a=b")
            self.assertEqual(route.add("http://127.0.0.1:1/state"), "/0/state")


if __name__ == "__main__":
    unittest.main()
