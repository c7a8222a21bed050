"""Counts and times the decisions of policies in Python and of equal built-in policies.

Prints a line for each policy and round: name, decisions, CPU seconds in Python and built in.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import slackline

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "python/examples"))
import policies  # noqa: E402

HEAD = """title = "decisions"
length = "LENGTH"
policy = { name = "POLICY" }
[host]
cpus = 1
"""


def scenario(policy: str, length: str) -> slackline.Scenario:
    """Return a scenario: three vCPUs that always compute, or eight periodic ones with hard limits."""
    text = HEAD.replace("LENGTH", length).replace("POLICY", policy)
    for number in range(3 if policy == "round-robin" else 8):
        if policy == "round-robin":
            work, share = '{ kind = "spin" }', ""
        else:
            period, work_us = 10 + 3 * number, 1000 + 100 * number
            times = f'period = "{period}ms", work = "{work_us}us"'
            work = f'{{ kind = "periodic", {times} }}'
            share = f'share.edf = {{ slice = "{work_us}us", period = "{period}ms", exact = true }}\n'
        text += f'[[domain]]\nname = "t{number}"\nwork = {work}\n{share}'
    return slackline.Scenario(text)


def count(which: slackline.Scenario, policy: type[slackline.Policy]) -> int:
    """Return the number of decisions that a policy makes in a run. The run is not timed."""
    calls = 0

    class Counted(policy):  # type: ignore[misc,valid-type]
        def pick(self, now: int, cpu: int, current: int | None, eligible: list[int]) -> object:
            nonlocal calls
            calls += 1
            return super().pick(now, cpu, current, eligible)

    slackline.run(which, policy=Counted)
    return calls


def seconds(which: slackline.Scenario, policy: object) -> float:
    """Return the CPU time of a run, which does not include the time of other programs."""
    began = time.process_time()
    slackline.run(which, policy=policy)  # type: ignore[arg-type]
    return time.process_time() - began


def main(rounds: int) -> None:
    # With these lengths, a run in Python takes about half a second.
    cases = (("round-robin", policies.RoundRobin, "2000s"), ("edf", policies.Edf, "400s"))
    for name, policy, length in cases:
        which = scenario(name, length)
        built_in = slackline.run(which)
        python = slackline.run(which, policy=policy)
        if python.vcpus != built_in.vcpus:
            sys.exit(f"the two forms of {name} schedule differently")
        decisions = count(which, policy)
        for _ in range(rounds):
            print(name, decisions, seconds(which, policy), seconds(which, None))


if __name__ == "__main__":
    main(int(sys.argv[1]))
