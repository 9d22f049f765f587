"""Rollouts of verifiers in Cloche sandboxes.

With the flag ``--env.id cloche-verifiers`` every rollout of a taskset has a sandbox of its own,
without a network unless it is asked for: the model, tools and state that verifiers serves on this
machine are reached through one endpoint, ``http://127.0.0.1:13131``. Code that runs agents itself
puts them into sandboxes with `in_cloche`, or takes a `ClocheRuntime` for ``Agent.run(runtime=...)``.
"""

from cloche.verifiers.api import ApiError
from cloche.verifiers.config import ClocheConfig
from cloche.verifiers.env import ClocheEnv, ClocheEnvConfig, SandboxedAgent, in_cloche
from cloche.verifiers.runtime import ClocheRuntime

__all__ = [
    "ApiError",
    "ClocheConfig",
    "ClocheEnv",
    "ClocheEnvConfig",
    "ClocheRuntime",
    "SandboxedAgent",
    "in_cloche",
]
