"""Agents of any environment in sandboxes, and the environment that does so for any taskset."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import verifiers.v1 as vf
from verifiers.v1.mcp import SharedToolServer
from verifiers.v1.runtimes import runtime_is_local
from verifiers.v1.utils.compile import resolve_runtime_config

from cloche.verifiers.config import ClocheConfig
from cloche.verifiers.runtime import ClocheRuntime


class SandboxedAgent:
    """An agent each of whose runs has a sandbox of its own, unless it is given a runtime."""

    def __init__(self, agent: vf.Agent, config: ClocheConfig) -> None:
        if not runtime_is_local(agent.runtime_config):
            raise ValueError(
                f"the agent is configured for {agent.runtime_config.type}, which verifiers reaches by a "
                "tunnel; give it a local kind, which is then replaced: --env.<role>.runtime.type docker"
            )
        self._agent, self._config = agent, config

    def __getattr__(self, name: str) -> object:
        return getattr(self._agent, name)

    def _box(self, task: vf.Task) -> ClocheRuntime:
        config = resolve_runtime_config(self._config, task)
        # What verifiers compares a borrowed runtime's network policy with.
        self._agent.runtime_config = self._config
        return ClocheRuntime(config)

    async def run(
        self,
        task: vf.Task,
        *,
        runtime: vf.Runtime | None = None,
        tools: Mapping[str, SharedToolServer] | None = None,
        on_trace: Callable[[vf.Trace], None] | None = None,
        collect_artifacts: bool = False,
    ) -> vf.Trace:
        """`Agent.run`. A run that failed is not tried again in the same sandbox; whole episodes are, by
        ``--env.retries``, in new ones."""
        async with self._placed(task, runtime) as box:
            return await self._agent.run(
                task,
                runtime=box,
                tools=tools,
                on_trace=on_trace,
                collect_artifacts=collect_artifacts,
            )

    @asynccontextmanager
    async def interaction(
        self,
        task: vf.Task,
        *,
        runtime: vf.Runtime | None = None,
        tools: Mapping[str, SharedToolServer] | None = None,
        on_trace: Callable[[vf.Trace], None] | None = None,
    ) -> AsyncIterator[vf.Interaction]:
        """`Agent.interaction`."""
        async with self._placed(task, runtime) as box:
            async with self._agent.interaction(
                task, runtime=box, tools=tools, on_trace=on_trace
            ) as interaction:
                yield interaction

    @asynccontextmanager
    async def provision(self, task: vf.Task) -> AsyncIterator[vf.Runtime]:
        """`Agent.provision`: a sandbox that runs, for several runs to share."""
        async with self._placed(task, None) as box:
            await box.prepare_setup()
            box.env = dict(task.runtime_env())
            yield box

    @asynccontextmanager
    async def _placed(self, task: vf.Task, runtime: vf.Runtime | None) -> AsyncIterator[vf.Runtime]:
        if runtime is not None:
            yield runtime
            return
        box = self._box(task)
        try:
            yield box
        finally:
            await box.stop()


class SandboxedAgents:
    """The agents of an episode, by name, each in sandboxes."""

    def __init__(self, agents: vf.Agents, config: ClocheConfig) -> None:
        self._agents, self._config = agents, config

    def __getattr__(self, name: str) -> SandboxedAgent:
        return SandboxedAgent(getattr(self._agents, name), self._config)


def in_cloche(agents: vf.Agents, config: ClocheConfig) -> SandboxedAgents:
    """The agents that ``Env.run`` was given, each run of them in a sandbox of its own::

    async def run(self, task, agents):
        await super().run(task, in_cloche(agents, self.config.cloche))
    """
    return SandboxedAgents(agents, config)


class ClocheEnvConfig(vf.EnvConfig):
    """One agent on any taskset, in a sandbox for each rollout."""

    cloche: ClocheConfig = ClocheConfig()
    """The sandbox."""
    # A kind that needs no tunnel; what it says beside that is not used.
    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.DockerConfig())
    """The one seat."""


class ClocheEnv(vf.Env[ClocheEnvConfig]):
    """``--env.id cloche-verifiers``."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await in_cloche(agents, self.config.cloche).agent.run(task)
