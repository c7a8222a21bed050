"""Slackline in Python: simulate and compare schedulers of virtual machines, and write policies.

Times are integers in nanoseconds, except where a text such as "10s" is required. Shares are
parts per million of a CPU.

>>> import slackline
>>> scenario = slackline.Scenario.read("scenarios/schedulers.toml")
>>> slackline.run(scenario, policy="credit").vcpus[0]["delivered_ppm"]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ._errors import ContractBroken, NotAdmitted, ScenarioError, ServiceError, SlacklineError
from ._policy import Policy
from ._service import Service
from ._slackline import (
    Run,
    Scenario,
    Table,
    __version__,
    import_workload,
    policies,
    replay,
    run,
    run_many,
    whatif,
)
from ._sweep import load, sweep

__all__ = [
    "ContractBroken",
    "NotAdmitted",
    "Policy",
    "Run",
    "Scenario",
    "ScenarioError",
    "Service",
    "ServiceError",
    "SlacklineError",
    "Table",
    "__version__",
    "compare",
    "import_workload",
    "load",
    "policies",
    "replay",
    "run",
    "run_many",
    "sweep",
    "to_parquet",
    "whatif",
]


def compare(
    scenario: Scenario,
    policies: Sequence[str | type[Policy]],
    *,
    seeds: Iterable[int] = (1,),
    length: str | None = None,
) -> list[dict[str, Any]]:
    """Run a scenario under several policies. Return a row for each policy, seed and vCPU.

    Each row has the columns `policy` and `seed` before the metrics of `Run.vcpus`. Built-in
    policies run on all cores. The rows are what `pandas.DataFrame` or `polars.DataFrame` take.
    """
    if isinstance(policies, str):
        raise TypeError("policies must be a list, such as ['edf', 'credit']")
    chosen = list(seeds)
    rows: list[dict[str, Any]] = []
    for policy in policies:
        if isinstance(policy, str):
            name = policy
            [runs] = run_many([scenario], [policy], chosen, length=length)
        else:
            name = policy.__name__
            runs = [run(scenario, policy=policy, seed=seed, length=length) for seed in chosen]
        for seed, result in zip(chosen, runs, strict=True):
            rows += [{"policy": name, "seed": seed, **vcpu} for vcpu in result.vcpus]
    return rows


def to_parquet(run: Run, folder: str) -> list[str]:
    """Write the run intervals and events of a run as Parquet files and return their paths.

    Needs pyarrow, and a run that was made with `columns=True`.
    """
    import os

    import pyarrow
    import pyarrow.parquet

    os.makedirs(folder, exist_ok=True)
    paths = []
    for name, table in (("intervals", run.intervals), ("events", run.changes)):
        if table is None:
            raise SlacklineError("the run has no columns: run it with columns=True")
        path = os.path.join(folder, f"{name}.parquet")
        pyarrow.parquet.write_table(pyarrow.table(table), path)
        paths.append(path)
    return paths
