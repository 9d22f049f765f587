"""Sandboxes of Cloche's for the OpenAI Agents SDK. It needs the extra ``cloche[openai-agents]``.

    from agents import Runner, RunConfig
    from agents.sandbox import SandboxAgent, SandboxRunConfig
    from cloche.openai_agents import ClocheSandboxClient

    async with ClocheSandboxClient() as client:
        run = RunConfig(sandbox=SandboxRunConfig(client=client))
        await Runner.run(SandboxAgent(name="coder", model=...), "Fix the bug.", run_config=run)

`ClocheSandboxClient` makes, resumes and deletes sandboxes as the SDK asks; `ClocheSandboxClientOptions` says
what they are to be.
"""

from __future__ import annotations

try:
    import agents.sandbox  # noqa: F401
except ImportError as e:
    raise ImportError(
        "cloche.openai_agents needs the OpenAI Agents SDK: pip install 'cloche[openai-agents]'"
    ) from e

from cloche.openai_agents.client import ClocheSandboxClient
from cloche.openai_agents.options import ClocheSandboxClientOptions, ClocheSandboxSessionState
from cloche.openai_agents.session import ClocheSandboxSession

__all__ = [
    "ClocheSandboxClient",
    "ClocheSandboxClientOptions",
    "ClocheSandboxSession",
    "ClocheSandboxSessionState",
]
