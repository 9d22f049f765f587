"""Rollouts of the real verifiers package in sandboxes of a real daemon, which CLOCHE_HOST names."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from collections.abc import Awaitable, Callable
from pathlib import Path

import verifiers.v1 as vf
from verifiers.v1.clients import EvalClientConfig, ModelContext

from cloche.verifiers import ClocheConfig, ClocheEnv, ClocheEnvConfig, ClocheRuntime
from cloche.verifiers.__main__ import validate
from cloche.verifiers.api import Api

from fake_model import FakeModel

KEY = "the-real-key"
KEY_VAR = "FAKE_MODEL_SECRET"
PATIENCE = 240.0
"""Seconds for what must happen; a loaded machine takes its time."""


async def eventually(seen: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await seen():  # noqa: ASYNC110 - what is waited for is elsewhere
            await asyncio.sleep(0.05)


def traces_in(out: Path) -> list[vf.WireTrace]:
    """What a trainer reads of a run."""
    (file,) = out.rglob("traces.jsonl")
    lines = file.read_text().splitlines()
    return [t for line in lines for t in vf.WireEpisode.model_validate_json(line).traces]


@unittest.skipUnless(os.environ.get("CLOCHE_HOST"), "needs a daemon: set CLOCHE_HOST")
class EndToEnd(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        os.environ[KEY_VAR] = KEY
        # Slow steps are told in debug mode; here they are the machine's.
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        self.model = self.enterContext(FakeModel(KEY))
        self.api = Api()
        self.addAsyncCleanup(self.api.close)

    async def sandboxes(self) -> list[dict]:
        return (await self.api.json("GET", "/v1/sandboxes")).get("sandboxes") or []

    async def nothing_left(self) -> bool:
        return not await self.sandboxes()

    def env(self, **cloche: object) -> ClocheEnv:
        return ClocheEnv(
            ClocheEnvConfig.model_validate(
                {
                    "id": "cloche-verifiers",
                    "taskset": {"id": "lookup-taskset"},
                    "agent": {"harness": {"id": "lookup-harness"}},
                    "cloche": cloche,
                }
            )
        )

    def context(self) -> ModelContext:
        client = EvalClientConfig(base_url=self.model.url, api_key_var=KEY_VAR)
        return ModelContext(model="tiny", client=client, sampling=vf.SamplingConfig())

    async def episode(self, env: ClocheEnv, task: vf.Task) -> vf.Episode:
        async with env.serving():
            return await env.run_episode(task, self.context())

    async def test_the_command_with_a_flag(self) -> None:
        """Four rollouts at once by verifiers' own command: model, tools and their state through one
        endpoint, and no other network."""
        out = self.enterContext(tempfile.TemporaryDirectory())
        program = "from verifiers.v1.cli.eval.main import main; main()"
        flags = [
            "lookup-taskset",
            *("--env.id", "cloche-verifiers"),
            *("--env.agent.harness.id", "lookup-harness"),
            *("-n", "2", "-r", "2", "-c", "4", "--model", "tiny", "--no-push", "--no-rich", "-o", out),
            *("--client.base-url", self.model.url, "--client.api-key-var", KEY_VAR),
        ]
        run = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program, *flags),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await run.communicate()
        self.assertEqual(run.returncode, 0, said.decode()[-4000:])
        traces = traces_in(Path(out))
        self.assertEqual(len(traces), 4)
        for trace in traces:
            self.assertTrue(trace.ok, trace.errors)
            self.assertEqual(trace.reward, 1.0)
            self.assertEqual(trace.metrics["offline"], 1.0, "the sandbox reached something else")
            self.assertGreaterEqual(trace.metrics["streamed"], 6, "the answers did not come as streams")
            self.assertEqual(trace.metrics["asked"], 1.0, "the tool's state did not come back")
            self.assertEqual(trace.num_turns, 2)
            self.assertTrue(trace.agent.runtime.id.startswith("sb-"))
        self.assertEqual(len({t.agent.runtime.id for t in traces}), 4, "rollouts shared a sandbox")
        self.assertEqual(self.model.refused, [])
        self.assertEqual(len(self.model.requests), 8)
        self.assertEqual(await self.sandboxes(), [])

    async def test_the_caller_is_the_user(self) -> None:
        """A simulated user: two turns of one conversation, in one sandbox."""
        env = self.env()
        task = next(iter(env.taskset))
        seen: list[str] = []

        class Talk(ClocheEnv):
            async def run(self, task: vf.Task, agents: vf.Agents) -> None:
                from cloche.verifiers import in_cloche

                async with in_cloche(agents, self.config.cloche).agent.interaction(task) as talk:
                    seen.append((await talk.turn()).last_reply)
                    seen.append((await talk.turn("thank you")).last_reply)

        episode = await self.episode(Talk(env.config), task)
        self.assertTrue(episode.ok, (episode.errors, [t.errors for t in episode.traces]))
        self.assertIn("Paris", seen[0])
        self.assertIn("I heard: thank you", seen[1])
        self.assertEqual([m["role"] for m in self.model.requests[-1]["messages"]].count("user"), 2)
        self.assertEqual(await self.sandboxes(), [])

    async def test_a_stop_condition_ends_the_rollout(self) -> None:
        env = self.env()
        task = next(iter(env.taskset)).with_data(stop_after=1)
        episode = await self.episode(env, task)
        (trace,) = episode.traces
        self.assertEqual(trace.stop_condition, "enough")
        self.assertEqual(len(self.model.requests), 1, "the model was asked after the stop")
        self.assertEqual(await self.sandboxes(), [])

    async def test_a_cancelled_rollout_leaves_nothing(self) -> None:
        env = self.env()
        task = next(iter(env.taskset)).with_data(prompt="hang")
        running = asyncio.create_task(self.episode(env, task))
        await asyncio.to_thread(self.model.hung.wait, PATIENCE)
        self.assertEqual(len(await self.sandboxes()), 1)
        running.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await running
        self.assertEqual(await self.sandboxes(), [])
        self.assertTrue(await asyncio.to_thread(self.model.left.wait, PATIENCE), "the model still works")

    async def test_a_timeout_kills_the_program_and_scores(self) -> None:
        """verifiers goes on with the sandbox when the agent's time is up: nothing of the agent may."""
        runtime = ClocheRuntime()
        self.addAsyncCleanup(runtime.stop)
        await runtime.start()
        script = "echo on > mark; sleep 997 & exec sleep 997"
        running = asyncio.create_task(runtime.run_program(["sh", "-c", script], {}))

        async def begun() -> bool:
            try:
                return await runtime.read("mark") == b"on\n"
            except vf.SandboxError:
                return False

        await eventually(begun)
        running.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await running
        count = await runtime.run(
            ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '^sleep 997'"], {}
        )
        self.assertEqual(count.stdout, "0\n")

    async def test_a_killed_trainer_leaves_nothing(self) -> None:
        program = textwrap.dedent("""
            import asyncio
            from cloche.verifiers import ClocheRuntime

            async def main():
                runtime = ClocheRuntime()
                await runtime.start()
                print("up", flush=True)
                await runtime.run(["sleep", "600"], {})

            asyncio.run(main())
        """)
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
        self.assertEqual(await child.stdout.readline(), b"up\n")
        self.assertEqual(len(await self.sandboxes()), 1)
        child.send_signal(signal.SIGKILL)
        await child.communicate()
        await eventually(self.nothing_left)

    async def test_a_lost_sandbox_is_said_to_be_one(self) -> None:
        runtime = ClocheRuntime()
        self.addAsyncCleanup(runtime.stop)
        await runtime.start()
        running = asyncio.create_task(runtime.run(["sleep", "600"], {}))
        await asyncio.sleep(0)
        await self.api.call("DELETE", f"/v1/sandboxes/{runtime.info.id}")
        with self.assertRaises(vf.SandboxError):
            async with asyncio.timeout(PATIENCE):
                await running
        self.assertFalse(await runtime.alive())
        with self.assertRaises(vf.SandboxError):
            await runtime.run(["true"], {})

    async def test_the_network_is_swapped_and_confirmed(self) -> None:
        """Rules of setting up, then those of the agent, then the first ones again. Nothing is sent."""
        config = ClocheConfig(setup_allow=["pkg.example", "10.1.2.3:8080"], allow=["api.example"], block=[])
        runtime = ClocheRuntime(config)
        self.addAsyncCleanup(runtime.stop)

        async def rules() -> list[str]:
            told = await self.api.json("GET", f"/v1/sandboxes/{runtime.info.id}/egress")
            return sorted(told["egress"].get("allow") or [])

        await runtime.prepare_setup()
        setup = ["10.1.2.3:8080", "api.example", "pkg.example"]
        self.assertEqual(await rules(), setup)
        await runtime.prepare_execution([runtime.host_url("http://127.0.0.1:1/v1")])
        self.assertEqual(await rules(), ["api.example"])
        await runtime.prepare_execution(None)
        self.assertEqual(await rules(), setup)
        self.assertTrue(runtime.network_restricted)

    async def test_setup_only_network_ends_offline(self) -> None:
        runtime = ClocheRuntime(ClocheConfig(setup_allow=["*"]))
        self.addAsyncCleanup(runtime.stop)
        await runtime.prepare_setup()
        await runtime.prepare_execution([])
        told = await self.api.json("GET", f"/v1/sandboxes/{runtime.info.id}/egress")
        self.assertFalse(told["egress"].get("allow"))

    async def test_without_rules_there_is_no_network(self) -> None:
        runtime = ClocheRuntime()
        self.addAsyncCleanup(runtime.stop)
        await runtime.start()
        (sandbox,) = await self.sandboxes()
        self.assertEqual(sandbox["network"], "none")
        self.assertEqual([e["listen"] for e in sandbox["endpoints"]], ["127.0.0.1:13131"])

    async def test_a_sandbox_that_cannot_be_made_is_on_the_trace(self) -> None:
        env = self.env(profile="no-such-profile")
        episode = await self.episode(env, next(iter(env.taskset)))
        (trace,) = episode.traces
        self.assertFalse(trace.ok)
        self.assertEqual(trace.last_error.type, "SandboxError")
        self.assertIn("no-such-profile", trace.last_error.message)

    async def test_bytes_are_what_they_are(self) -> None:
        runtime = ClocheRuntime()
        self.addAsyncCleanup(runtime.stop)
        await runtime.start()
        every = bytes(range(256)) * 4096
        await runtime.write("deep/er/every.bin", every)
        self.assertEqual(await runtime.read("deep/er/every.bin"), every)
        # A name that is no text.
        strange = os.fsdecode(b"caf\xe9 %2f?.bin")
        await runtime.write(strange, b"\xff\xfe\x00")
        self.assertEqual(await runtime.read(strange), b"\xff\xfe\x00")
        listed = await runtime.run(["sh", "-c", "ls | od -An -tx1"], {})
        self.assertIn("63 61 66 e9 20 25 32 66", " ".join(listed.stdout.split()))
        # Output, of a collected exec and of a live process.
        argv = ["python3", "-c", "import sys; sys.stdout.buffer.write(b'a\\xff\\x00'); sys.stderr.write('ok')"]
        told = await self.api.json("POST", f"/v1/sandboxes/{runtime.info.id}/exec", {"argv": argv})
        self.assertEqual(told["stdout"], {"base64": "Yf8A"})
        self.assertEqual(told["stdout_b64"], "Yf8A")
        self.assertEqual(told["stderr"], "ok")
        self.assertNotIn("stderr_b64", told)
        live = await runtime.open_process(["cat"], {})
        await live.write(every)
        got = b""
        while len(got) < len(every):
            got += await anext(live.stdout)
        self.assertEqual(got, every)
        await live.kill()
        self.assertEqual(await live.wait(), 128 + signal.SIGKILL)

    async def test_headers_and_bodies_cross_the_endpoint_as_they_are(self) -> None:
        runtime = ClocheRuntime()
        self.addAsyncCleanup(runtime.stop)
        await runtime.start()
        seen: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            seen.append(head + await reader.readexactly(length))
            writer.write(b"HTTP/1.1 200 OK\r\nX-Strange: b\xe9\xff\r\nX-Twice: 1\r\nX-Twice: 2\r\n")
            writer.write(b"Content-Length: 3\r\n\r\n\x00\xff\xfe")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.addCleanup(server.close)
        port = server.sockets[0].getsockname()[1]
        url = runtime.host_url(f"http://127.0.0.1:{port}/a%20b?q=%ff")
        program = textwrap.dedent("""
            import socket, sys
            path = sys.argv[1].partition("13131")[2].encode()
            s = socket.create_connection(("127.0.0.1", 13131))
            s.sendall(b"POST " + path + b" HTTP/1.1\\r\\nHost: 127.0.0.1:13131\\r\\nX-In: a\\xe9\\xff\\r\\n"
                      b"Authorization: Bearer mine\\r\\nConnection: close\\r\\nContent-Length: 3\\r\\n"
                      b"\\r\\n\\xff\\x00\\xfe")
            while data := s.recv(65536):
                sys.stdout.buffer.write(data)
        """)
        _, out, _ = await runtime._collect(["python3", "-c", program, url], {})
        self.assertEqual(len(seen), 1, out)
        self.assertIn(b"POST /a%20b?q=%ff HTTP/1.1\r\n", seen[0])
        self.assertIn(b"X-In: a\xe9\xff\r\n", seen[0])
        self.assertIn(b"Authorization: Bearer mine\r\n", seen[0])
        self.assertTrue(seen[0].endswith(b"\r\n\r\n\xff\x00\xfe"))
        self.assertIn(b"b\xe9\xff\r\n", out)
        self.assertEqual(out.count(b"X-Twice: "), 2)
        self.assertTrue(out.endswith(b"\r\n\r\n\x00\xff\xfe"), out)

    async def test_what_was_not_given_is_not_there(self) -> None:
        """A rollout reaches what its runtime was told of, not another's services, and no other address."""
        one, two = ClocheRuntime(), ClocheRuntime()
        for runtime in (one, two):
            self.addAsyncCleanup(runtime.stop)
            await runtime.start()
        one.host_url(self.model.url)
        ask = textwrap.dedent("""
            import sys, urllib.error, urllib.request
            try:
                urllib.request.urlopen("http://127.0.0.1:13131" + sys.argv[1])
            except urllib.error.HTTPError as e:
                print(e.code)
        """)
        for runtime, path, status in (
            (one, "/0/v1/models", "501"),  # the model's server, which knows no GET
            (one, "/1/v1/models", "404"),
            (two, "/0/v1/models", "404"),
            (one, "/0@127.0.0.1/x", "404"),
            (one, "/0/../../x", "400"),
        ):
            said = await runtime.run(["python3", "-c", ask, path], {})
            self.assertEqual(said.stdout.strip(), status, path)

    @unittest.skipUnless(
        os.geteuid() == 0, "needs a daemon of root's: others have one id, whose files are root's for root"
    )
    async def test_another_user(self) -> None:
        runtime = ClocheRuntime()
        self.addAsyncCleanup(runtime.stop)
        await runtime.start()
        view = runtime.with_user("nobody", "/tmp/home")
        said = await view.run(["sh", "-c", "id -un; echo $HOME"], {})
        self.assertEqual(said.stdout, "nobody\n/tmp/home\n")
        await view.write("/tmp/home/deep/x", b"\x00\xff")
        self.assertEqual(await view.read("/tmp/home/deep/x"), b"\x00\xff")
        owner = await runtime.run(["stat", "-c", "%U", "/tmp/home/deep/x"], {})
        self.assertEqual(owner.stdout, "nobody\n")

    async def test_a_server_inside_is_published(self) -> None:
        runtime = ClocheRuntime()
        self.addAsyncCleanup(runtime.stop)
        await runtime.start()
        await runtime.write("served/hello", b"hello from inside")
        argv = ["python3", "-m", "http.server", "8111", "--bind", "127.0.0.1", "--directory", "served"]
        await runtime.run_background(argv, {}, "server.log")
        url = await runtime.expose(8111)

        async def answers() -> bool:
            got = await asyncio.create_subprocess_exec(
                *("curl", "-s", "-m", "10", f"{url}/hello"), stdout=subprocess.PIPE
            )
            return (await got.communicate())[0] == b"hello from inside"

        await eventually(answers)
        self.assertIn(b"GET /hello", await runtime.read("server.log"))

    async def test_output_over_the_bound_is_an_error_and_not_a_hole(self) -> None:
        from cloche.verifiers import process

        runtime = ClocheRuntime()
        self.addAsyncCleanup(runtime.stop)
        await runtime.start()
        bound, process.OUTPUT_BYTES = process.OUTPUT_BYTES, 100_000
        self.addCleanup(setattr, process, "OUTPUT_BYTES", bound)
        flood = ["sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x; echo end"]
        with self.assertRaisesRegex(vf.SandboxError, "to a file"):
            await runtime.run(flood, {})
        kept = await runtime.run_program(flood, {})
        self.assertEqual((kept.exit_code, len(kept.stdout), kept.stdout[-5:]), (0, 100_000, "xend\n"))

    async def test_what_is_not_there_to_run(self) -> None:
        runtime = ClocheRuntime()
        self.addAsyncCleanup(runtime.stop)
        await runtime.start()
        self.assertEqual((await runtime.run(["no-such-program"], {})).exit_code, 127)
        self.assertEqual((await runtime.run(["/etc/passwd"], {})).exit_code, 126)
        self.assertEqual((await runtime.run(["sh", "-c", "kill -9 $$"], {})).exit_code, 137)

    async def test_validate(self) -> None:
        rows = await validate("lookup-taskset", ClocheConfig(), limit=2)
        self.assertEqual([row["outcome"] for row in rows], ["valid", "valid"], rows)
        self.assertEqual(self.model.requests, [])
        self.assertEqual(await self.sandboxes(), [])

    async def test_many_at_once_and_how_long_they_take(self) -> None:
        begun = time.monotonic()

        async def one(n: int) -> str:
            runtime = ClocheRuntime()
            try:
                await runtime.start()
                return (await runtime.run(["echo", str(n)], {})).stdout
            finally:
                await runtime.stop()

        said = await asyncio.gather(*(one(n) for n in range(16)))
        self.assertEqual(said, [f"{n}\n" for n in range(16)])
        print(json.dumps({"sandboxes": 16, "seconds": round(time.monotonic() - begun, 2)}), file=sys.stderr)
        self.assertEqual(await self.sandboxes(), [])


if __name__ == "__main__":
    unittest.main()
