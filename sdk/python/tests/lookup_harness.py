"""The harness whose program is inside/agent.py."""

import json
from pathlib import Path

import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire

PROGRAM = Path(__file__).parent / "inside" / "agent.py"


class LookupHarnessConfig(vf.HarnessConfig):
    pass


class LookupHarness(vf.Harness[LookupHarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True

    async def setup(self, runtime: vf.Runtime) -> None:
        await runtime.write("agent.py", PROGRAM.read_bytes())

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data) -> vf.ProgramResult:
        system, prompt = self.resolve_prompt(data)
        if isinstance(prompt, str):
            prompt = [vf.UserMessage(content=prompt)]
        messages = [message_to_wire(m) for m in prompt or ()]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        told = {"endpoint": endpoint, "model": ctx.model, "messages": messages, "mcp": mcp_urls}
        return await runtime.run_program(["python3", "agent.py", json.dumps(told)], {"AGENT_KEY": secret})


__all__ = ["LookupHarness"]
