"""A tool that is served on this machine: it knows what the model does not."""

import verifiers.v1 as vf
from pydantic import Field

CAPITALS = {"France": "Paris", "Japan": "Tōkyō", "Kenya": "Nairobi"}


class LookupState(vf.State):
    asked: list[str] = Field(default_factory=list)


class Lookup(vf.Toolset[vf.ToolsetConfig, LookupState]):
    TOOL_PREFIX = None

    @vf.tool
    async def lookup(self, country: str) -> str:
        """The capital of a country."""
        self.state.asked.append(country)
        return CAPITALS[country]


if __name__ == "__main__":
    Lookup.run()
