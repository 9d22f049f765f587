"""How verifiers' configuration reads for Cloche."""

import unittest

import verifiers.v1 as vf
from pydantic import ValidationError
from verifiers.v1.utils.compile import resolve_runtime_config

from cloche.verifiers import ClocheConfig, ClocheEnvConfig, SandboxedAgent
from cloche.verifiers.config import egress_rule


class Rules(unittest.TestCase):
    def test_rules(self) -> None:
        for rule, want in {
            "*": "*",
            "api.example": "api.example",
            "API.Example.": "api.example",
            "*.example": "*.example",
            "api.example:8443": "api.example:8443",
            "https://api.example": "api.example",
            "http://api.example:80/": "api.example",
            "https://api.example:8443": "api.example:8443",
            "10.1.2.3:5432": "10.1.2.3:5432",
        }.items():
            self.assertEqual(egress_rule(rule), want, rule)

    def test_what_would_become_wider_is_refused(self) -> None:
        for rule in ("api-*.example", "a?.example", "https://api.example/v1", "10.0.0.0/8", "", "[::1]:80"):
            with self.assertRaises(ValueError, msg=rule):
                egress_rule(rule)
        for rule in ("ftp://files.example", "u:p@api.example", "api.example:x"):
            with self.assertRaises(ValueError, msg=rule):
                egress_rule(rule)

    def test_nothing_is_reached_by_default(self) -> None:
        config = ClocheConfig()
        self.assertFalse(config.networked)
        self.assertTrue(config.network_restricted)

    def test_a_blocked_name_blocks_what_is_below_it(self) -> None:
        config = ClocheConfig(allow=["*"], block=["bad.example", "*.worse.example"])
        self.assertEqual(
            config.egress(setup=False), ({"*"}, {"bad.example", "*.bad.example", "*.worse.example"})
        )

    def test_a_tasks_policy_narrows(self) -> None:
        task = vf.Task(vf.TaskData(network_allow=["api.example", "pkg.example"], image="python:3.12"))
        config = resolve_runtime_config(ClocheConfig(allow=["api.example"]), task)
        self.assertEqual((config.allow, config.image), (["api.example"], "python:3.12"))
        offline = resolve_runtime_config(ClocheConfig(), task)
        self.assertEqual(offline.allow, [])

    def test_what_cloche_does_not_have_is_refused(self) -> None:
        for wrong in ({"gpu": "A100"}, {"workdir": "app"}, {"allow": ["a*b.example"]}, {"nope": 1}):
            with self.assertRaises(ValidationError, msg=wrong):
                ClocheConfig(**wrong)

    def test_the_record_is_one_that_verifiers_reads(self) -> None:
        info = ClocheConfig(image="python:3.12", cpu=2, setup_allow=["*"]).record()
        again = vf.AgentInfo(config=vf.AgentConfig(runtime=vf.DockerConfig()), runtime=info.model_dump())
        self.assertEqual(again.runtime.image, "python:3.12")

    def test_the_flag_narrows_to_this_environment(self) -> None:
        config = ClocheEnvConfig.model_validate(
            {"id": "cloche-verifiers", "cloche": {"image": "python:3.12", "memory": 2}}
        )
        self.assertEqual(config.cloche.memory, 2)

    def test_an_agent_behind_a_tunnel_is_refused(self) -> None:
        config = vf.AgentConfig(model="tiny", runtime=vf.DockerConfig(), harness={"id": "null"})
        agent = vf.make_agent(config)
        self.assertIs(SandboxedAgent(agent, ClocheConfig()).harness, agent.harness)
        agent.runtime_config = vf.PrimeConfig()
        with self.assertRaisesRegex(ValueError, "tunnel"):
            SandboxedAgent(agent, ClocheConfig())


if __name__ == "__main__":
    unittest.main()
