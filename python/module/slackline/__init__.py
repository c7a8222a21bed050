"""Slackline in Python: simulate and compare schedulers of virtual machines, and write policies.

Times are integers in nanoseconds, except where a text such as "10s" is required. Shares are
parts per million of a CPU.

>>> import slackline
>>> scenario = slackline.Scenario.read("scenarios/schedulers.toml")
>>> slackline.run(scenario, policy="credit").vcpus[0]["delivered_ppm"]
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from ._errors import ContractBroken, NotAdmitted, ScenarioError, ServiceError, SlacklineError
from ._policy import Policy
from ._service import Service
from ._slackline import (
    Alert,
    Fit,
    FitPeriod,
    FitProof,
    FitReservation,
    FitTask,
    FitTrace,
    ProofPoint,
    Run,
    Scenario,
    Table,
    TaskResponse,
    TaskSet,
    TriedPeriods,
    __version__,
    alert,
    check,
    fit,
    import_task_set,
    import_workload,
    policies,
    replay,
    run,
    run_many,
    run_rows,
    whatif,
)
from ._sweep import load, sweep

__all__ = [
    "Alert",
    "ContractBroken",
    "Fit",
    "FitPeriod",
    "FitProof",
    "FitReservation",
    "FitTask",
    "FitTrace",
    "NotAdmitted",
    "Policy",
    "ProofPoint",
    "Run",
    "Scenario",
    "ScenarioError",
    "Service",
    "ServiceError",
    "SlacklineError",
    "Table",
    "TaskResponse",
    "TaskSet",
    "TriedPeriods",
    "__version__",
    "alert",
    "check",
    "compare",
    "fit",
    "import_task_set",
    "import_workload",
    "load",
    "policies",
    "replay",
    "run",
    "run_many",
    "run_rows",
    "sweep",
    "task_set",
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
    policies run on all cores. `pandas.DataFrame` and `polars.DataFrame` accept the rows.
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


def task_set(
    tasks: Iterable[Mapping[str, str | int]], *, scheduler: str = "edf", title: str = "task set"
) -> TaskSet:
    """Return a task set for `fit` from rows with the keys of a task.

    The keys are `work`, `period`, and optionally `name`, `deadline` and `priority`. Times are texts
    such as "1ms". `scheduler` is "edf" or "fixed".

    >>> slackline.task_set([{"work": "1ms", "period": "10ms"}, {"work": "8ms", "period": "100ms"}])
    """

    def text(value: object) -> str:
        return str(value) if isinstance(value, int) else json.dumps(value, ensure_ascii=False)

    lines = [f"title = {text(title)}", f"scheduler = {text(scheduler)}"]
    for task in tasks:
        lines += ["[[task]]", *(f"{text(key)} = {text(value)}" for key, value in task.items())]
    return TaskSet("\n".join(lines))


def to_parquet(
    run: Run,
    folder: str | os.PathLike[str],
    *,
    tables: Literal["slackline", "systing"] = "slackline",
) -> list[str]:
    """Write the run intervals and events of a run as Parquet files and return their paths.

    With `tables="systing"` the files have the tables and columns of systing: `process`, `thread`,
    `sched_slice` and `thread_state`. A VM is a process, and a vCPU is a thread. Needs pyarrow, and
    a run that was made with `columns=True`.
    """
    import pyarrow
    import pyarrow.parquet

    if run.intervals is None or run.changes is None:
        raise SlacklineError("the run has no columns: run it with columns=True")
    if tables == "systing":
        from ._systing import tables as systing_tables

        named = systing_tables(run)
    elif tables == "slackline":
        named = {"intervals": pyarrow.table(run.intervals), "events": pyarrow.table(run.changes)}
    else:
        raise ValueError(f"there are no tables `{tables}`: use slackline or systing")
    os.makedirs(folder, exist_ok=True)
    paths = []
    for name, table in named.items():
        path = os.path.join(folder, f"{name}.parquet")
        pyarrow.parquet.write_table(table, path)
        paths.append(path)
    return paths
