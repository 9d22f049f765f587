"""A taskset with everything that crosses the boundary: files, a tool with state, a stop, a score."""

import json
from collections.abc import Iterable

import verifiers.v1 as vf

from lookup_tools import CAPITALS, Lookup, LookupState


class LookupData(vf.TaskData):
    country: str
    stop_after: int | None = None


class LookupTask(vf.Task[LookupData, LookupState]):
    NEEDS_CONTAINER = True

    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Lookup(vf.ToolsetConfig())]

    async def setup(self, runtime: vf.Runtime) -> None:
        await runtime.write("task/country.txt", self.data.country.encode())

    async def validate(self, runtime: vf.Runtime) -> bool:
        known = (await runtime.read("task/country.txt")).decode()
        return known in CAPITALS

    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        return self.data.stop_after is not None and trace.num_turns >= self.data.stop_after

    @vf.reward
    async def answered(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        report = json.loads(await runtime.read("report.json", 1 << 20))
        return float(CAPITALS[self.data.country] in (report["answer"] or ""))

    @vf.metric
    async def offline(self, runtime: vf.Runtime) -> float:
        report = json.loads(await runtime.read("report.json", 1 << 20))
        return float(report["outside"] == ["refused", "refused"])

    @vf.metric
    async def streamed(self, runtime: vf.Runtime) -> float:
        return float(json.loads(await runtime.read("report.json", 1 << 20))["events"])

    @vf.metric
    async def asked(self, trace: vf.Trace) -> float:
        return float(len(trace.state.asked))


class LookupTaskset(vf.Taskset[LookupTask]):
    def load(self) -> Iterable[LookupTask]:
        for country in CAPITALS:
            data = LookupData(name=country, prompt=f"What is the capital of {country}?", country=country)
            yield LookupTask(data, self.config.task)


__all__ = ["LookupTaskset"]
