"""An agent of the OpenAI Agents SDK fixes a small repository in a sandbox of Cloche.

    pip install './sdk/python[openai-agents]'
    cloche serve &
    python sdk/python/examples/openai_bugfix.py

No model is asked: what it would say is scripted. With one, give the agent its name, and leave SCRIPT out.
"""

from __future__ import annotations

import asyncio

from agents import RunConfig, Runner
from agents.items import TResponseOutputItem
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File
from agents.testing import ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseCustomToolCall

from cloche.openai_agents import ClocheSandboxClient, ClocheSandboxClientOptions

REPOSITORY = {
    "median.py": b"""def median(values):
    values = sorted(values)
    middle = len(values) // 2
    return values[middle]
""",
    "test_median.py": b"""import unittest

from median import median


class Test(unittest.TestCase):
    def test_odd(self):
        self.assertEqual(median([3, 1, 2]), 2)

    def test_even(self):
        self.assertEqual(median([4, 1, 3, 2]), 2.5)
""",
}
TESTS = "python3 -m unittest"
PATCH = """*** Begin Patch
*** Update File: median.py
@@
     middle = len(values) // 2
+    if len(values) % 2 == 0:
+        return (values[middle - 1] + values[middle]) / 2
     return values[middle]
*** End Patch
"""
SCRIPT: list[list[TResponseOutputItem]] = [
    [function_call("exec_command", {"cmd": f"cat median.py; {TESTS}"}, call_id="look")],
    [ResponseCustomToolCall(type="custom_tool_call", name="apply_patch", input=PATCH, call_id="mend")],
    [function_call("exec_command", {"cmd": TESTS}, call_id="test")],
    [assistant_message("The median of an even number of values was wrong. It is mended.")],
]


async def main() -> None:
    agent = SandboxAgent(
        name="mender", model=ScriptedModel(SCRIPT), instructions="Make the tests of this repository pass."
    )
    manifest = Manifest(entries={name: File(content=content) for name, content in REPOSITORY.items()})
    async with ClocheSandboxClient() as client:
        session = await client.create(manifest=manifest, options=ClocheSandboxClientOptions(image="host"))
        try:
            async with session:
                assert not (await session.exec(TESTS)).ok(), "there is nothing to mend"
                run = RunConfig(sandbox=SandboxRunConfig(session=session), tracing_disabled=True)
                result = await Runner.run(agent, "Please mend it.", run_config=run)
                print(result.final_output)
                after = await session.exec(TESTS)
                print("the tests pass" if after.ok() else after.stderr.decode())
        finally:
            await client.delete(session)


asyncio.run(main())
