"""The name by which verifiers finds the environment of `cloche.verifiers`: ``--env.id cloche-verifiers``."""

from cloche.verifiers import (
    ApiError,
    ClocheConfig,
    ClocheEnv,
    ClocheEnvConfig,
    ClocheRuntime,
    SandboxedAgent,
    in_cloche,
)

# verifiers takes the one Env in this list for the environment of this package.
__all__ = [
    "ApiError",
    "ClocheConfig",
    "ClocheEnv",
    "ClocheEnvConfig",
    "ClocheRuntime",
    "SandboxedAgent",
    "in_cloche",
]
