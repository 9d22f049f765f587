"""``cloche-verifiers validate TASKSET``: a taskset's own checks, in sandboxes and without a model."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence

import verifiers.v1 as vf
from verifiers.v1.state import state_cls
from verifiers.v1.utils.compile import resolve_runtime_config
from verifiers.v1.utils.decorators import invoke

from cloche.verifiers.config import ClocheConfig
from cloche.verifiers.runtime import ClocheRuntime

OUTCOMES = ("valid", "invalid", "unchecked", "error")


async def check(task: vf.Task, config: ClocheConfig) -> dict[str, object]:
    """Sets one task up in a sandbox of its own and lets it check its reference answer. A task without
    such a check is ``unchecked``; one whose sandbox or code failed is an ``error``, with its kind."""
    row: dict[str, object] = {"index": task.data.idx, "name": task.data.name}
    runtime = ClocheRuntime(resolve_runtime_config(config, task))
    runtime.env = dict(task.runtime_env())
    trace: vf.Trace = vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        state=state_cls(type(task))(),
        agent=vf.AgentInfo(config=vf.AgentConfig(runtime=vf.DockerConfig()), name="validate", trainable=False),
    )
    try:
        await runtime.start()
        async with asyncio.timeout(task.data.timeout.setup):
            await invoke(task.setup, {"trace": trace, "runtime": runtime})
        async with asyncio.timeout(task.data.timeout.scoring):
            valid = await task.validate(runtime)
        return row | {"outcome": "unchecked" if valid is None else "valid" if valid else "invalid"}
    except Exception as e:  # what a task's code does is a row of its own
        return row | {"outcome": "error", "error": f"{type(e).__name__}: {e}"}
    finally:
        await runtime.stop()


async def validate(
    taskset: str, config: ClocheConfig, *, limit: int | None = None, concurrent: int = 16
) -> list[dict[str, object]]:
    """The outcome of each task, in their order."""
    loaded = vf.load_taskset(vf.TasksetConfig(id=taskset))
    if limit is not None:
        loaded = loaded.take(limit)
    if not loaded.bounded:
        raise ValueError(f"{taskset} has no end: say how many tasks with -n")
    gate = asyncio.Semaphore(concurrent)

    async def one(task: vf.Task) -> dict[str, object]:
        async with gate:
            return await check(task, config)

    return list(await asyncio.gather(*(one(task) for task in loaded)))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line of JSON for each task; 0 if every one that has a check is valid."""
    parser = argparse.ArgumentParser(prog="cloche-verifiers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    verb = commands.add_parser("validate", help="check the tasks of a taskset, each in a sandbox")
    verb.add_argument("taskset", help="the taskset's id")
    verb.add_argument("-n", type=int, metavar="N", help="only the first N tasks")
    verb.add_argument("-c", type=int, default=16, metavar="N", help="so many at once (16)")
    verb.add_argument("--image", default="host", help="the image of tasks that name none")
    verb.add_argument("--setup-allow", action="append", default=[], metavar="HOST", help="may be reached")
    args = parser.parse_args(argv)
    config = ClocheConfig(image=args.image, setup_allow=args.setup_allow)
    rows = asyncio.run(validate(args.taskset, config, limit=args.n, concurrent=args.c))
    for row in rows:
        print(json.dumps(row))
    return int(any(row["outcome"] in ("invalid", "error") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
