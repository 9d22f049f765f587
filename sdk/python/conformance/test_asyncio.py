"""The same for asyncio, and what only that has: many at once, and callers that are cancelled."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import urllib.request
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

import cloche

from .conftest import IMAGE

PATIENCE = 60.0

needs_daemon = pytest.mark.skipif(not os.environ.get("CLOCHE_HOST"), reason="needs a daemon: set CLOCHE_HOST")
pytestmark = needs_daemon


def run(test: Callable[[cloche.AsyncSandboxClient, str], Coroutine[Any, Any, None]]) -> None:
    async def within() -> None:
        mark = uuid.uuid4().hex
        async with cloche.AsyncSandboxClient() as client:
            try:
                await asyncio.wait_for(test(client, mark), 5 * PATIENCE)
            finally:
                for left in await client.list(labels={"test": mark}):
                    await left.remove()

    asyncio.run(within())


async def none_left(client: cloche.AsyncSandboxClient, mark: str) -> None:
    end = time.monotonic() + PATIENCE
    while left := await client.list(labels={"test": mark}):
        assert time.monotonic() < end, f"left behind: {left}"
        await asyncio.sleep(0.05)


def test_all_of_it() -> None:
    async def test(client: cloche.AsyncSandboxClient, mark: str) -> None:
        assert (await client.run_python("print(6 * 7)", image=IMAGE)).stdout == "42\n"
        async with await client.create(image=IMAGE, labels={"test": mark}) as sb:
            await sb.files.write("f", "text")
            assert (await sb.exec("cat", ["f"])).stdout == "text"
            assert b"".join([c async for c in sb.files.read_chunks("f")]) == b"text"
            async with await sb.start_shell("echo said; cat", process={"open_stdin": True}) as p:
                output = p.__aiter__()
                assert (await output.__anext__()).text == "said\n"
                await p.close_stdin()
                done = await p.wait()
                assert done is not None and done.ok
            assert await sb.logs(exec_id=p.id) == "said\n"

            async def pieces() -> Any:
                yield b"a"
                yield b"b"

            await sb.files.write("g", pieces())
            assert await sb.files.read("g") == b"ab"
        assert await client.list(labels={"test": mark}) == []

    run(test)


def test_a_create_needs_no_await_in_a_with() -> None:
    async def test(client: cloche.AsyncSandboxClient, mark: str) -> None:
        async with client.create(image=IMAGE, labels={"test": mark}) as sb:
            assert (await sb.exec("echo", ["in"])).stdout == "in\n"
        assert await client.list(labels={"test": mark}) == []
        made = await asyncio.gather(
            asyncio.create_task(client.create(image=IMAGE, labels={"test": mark})),
            client.create(image=IMAGE, labels={"test": mark}),
        )
        for sb in made:
            async with sb:
                assert (await sb.exec("true")).ok
        with pytest.raises(cloche.ClocheError):
            async with client.create(image="nowhere.invalid/none:1", pull="never"):
                pytest.fail("there is no such image")

    run(test)


def test_ports_of_many_connections() -> None:
    async def test(client: cloche.AsyncSandboxClient, mark: str) -> None:
        async with client.create(image=IMAGE, labels={"test": mark}) as sb:
            await sb.files.write("f", b"content")
            serve = await sb.start("python3", ["-m", "http.server", "8000"], process={"ready": {"port": 8000}})
            assert await serve.wait_ready(PATIENCE)

            async def ask(url: str) -> bytes:
                return await asyncio.to_thread(lambda: urllib.request.urlopen(f"{url}/f").read())

            async with sb.forward(8000) as forward:
                assert set(await asyncio.gather(*(ask(forward.url) for _ in range(20)))) == {b"content"}

    run(test)


def test_many_at_once() -> None:
    async def test(client: cloche.AsyncSandboxClient, mark: str) -> None:
        results = await asyncio.gather(
            *(client.run_python(f"print({i})", image=IMAGE, labels={"test": mark}) for i in range(12))
        )
        assert [r.stdout for r in results] == [f"{i}\n" for i in range(12)]
        assert await client.list(labels={"test": mark}) == []

    run(test)


def test_a_caller_that_is_cancelled_leaves_nothing() -> None:
    """Cancelled at many moments of a create, a run, an exec and a file: the daemon's list has nothing of it."""

    async def test(client: cloche.AsyncSandboxClient, mark: str) -> None:
        labels = {"test": mark}

        async def one() -> None:
            async with await client.create(image=IMAGE, labels=labels) as sb:
                await sb.exec("true")
                await sb.files.write("f", "x")
                async with await sb.start("sleep", ["1000"]) as p:
                    async for _ in p:
                        pass

        async def other() -> None:
            await client.run_shell("sleep 1000", image=IMAGE, labels=labels)

        async def cancelled(work: Awaitable[None], after: float) -> None:
            task = asyncio.ensure_future(work)
            await asyncio.sleep(after)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        # From before the request was sent until long after the sandbox is there.
        moments = [0, 0.002, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.5, 1.5]
        for after in moments:
            await cancelled(one(), after)
        await asyncio.gather(*(cancelled(other(), after) for after in moments))
        await none_left(client, mark)

    run(test)


def test_an_exec_that_is_cancelled_at_once_leaves_no_command() -> None:
    """Cancelled after 0 to 5 ms, when the daemon may hear of the kill before it hears of the exec."""

    async def test(client: cloche.AsyncSandboxClient, mark: str) -> None:
        async with await client.create(image=IMAGE, labels={"test": mark}) as sb:

            async def given_up(i: int) -> None:
                work: Coroutine[Any, Any, Any] = (
                    sb.exec("sleep", ["1000"]) if i % 2 else sb.start("sleep", ["1000"])
                )
                task = asyncio.ensure_future(work)
                await asyncio.sleep(i * 0.00005)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                if not task.cancelled():  # the start was faster
                    await task.result().kill()

            for i in range(100):
                await given_up(i)
            for _ in range(2):
                end = time.monotonic() + PATIENCE
                while left := [p for p in await sb.processes() if p["running"]]:
                    assert time.monotonic() < end, left
                    await asyncio.sleep(0.02)
                await sb.exec("sleep", ["0.2"])  # what was under way has come

    run(test)


def test_a_command_of_a_process_that_was_killed() -> None:
    async def test(client: cloche.AsyncSandboxClient, mark: str) -> None:
        async with await client.create(image=IMAGE, labels={"test": mark}) as sb:
            for cancels in (True, False):
                code = "import cloche, sys; cloche.SandboxClient().get(sys.argv[1])"
                code += f".exec('sleep', ['1000'], exec_id='x-{int(cancels)}', cancel_with_caller={cancels})"
                caller = await asyncio.create_subprocess_exec(sys.executable, "-c", code, sb.id)

                async def runs(name: str = f"x-{int(cancels)}") -> bool:
                    return any(p["running"] for p in await sb.processes() if p["exec_id"] == name)

                end = time.monotonic() + PATIENCE
                while not await runs():
                    assert time.monotonic() < end and caller.returncode is None
                    await asyncio.sleep(0.02)
                caller.kill()
                await caller.wait()
                while cancels and await runs():
                    assert time.monotonic() < end
                    await asyncio.sleep(0.02)
            await sb.exec("sleep", ["1"])
            assert await runs()

    run(test)


def test_a_cancelled_exec_leaves_no_command() -> None:
    async def test(client: cloche.AsyncSandboxClient, mark: str) -> None:
        async with await client.create(image=IMAGE, labels={"test": mark}) as sb:
            task = asyncio.ensure_future(sb.exec("sh", ["-c", "touch began; sleep 1000"]))
            end = time.monotonic() + PATIENCE
            while not await sb.files.exists("began"):
                assert time.monotonic() < end
                await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            end = time.monotonic() + PATIENCE
            while any(p["running"] for p in await sb.processes()):
                assert time.monotonic() < end, await sb.processes()
                await asyncio.sleep(0.02)

    run(test)
