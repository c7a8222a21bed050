"""Tests of the module: scenarios, runs, columns, errors, and policies in Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import slackline

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import policies as example  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
PROGRAM = Path(os.environ.get("SLACKLINE_PROGRAM", ROOT / "target/debug/slackline"))

HOST = """title = "two guests"
length = "3s"
warmup = "1s"
policy = {{ name = "{policy}" }}
[host]
cpus = {cpus}
"""

MIXED = """[[domain]]
name = "hog"
work = { kind = "spin" }
share.edf = { slice = "3ms", period = "10ms", exact = true }
share.credit = { weight = 512 }
[[domain]]
name = "web"
work = { kind = "interactive", compute = "exponential 1ms", sleep = "exponential 5ms" }
share.edf = { slice = "4ms", period = "20ms", exact = true }
share.credit = { weight = 256 }
[[domain]]
name = "batch"
work = { kind = "spin" }
share.edf = { slice = "10ms", period = "50ms", exact = true }
share.credit = { weight = 256 }
"""


def mixed(policy: str = "edf", cpus: int = 1) -> slackline.Scenario:
    return slackline.Scenario(HOST.format(policy=policy, cpus=cpus) + MIXED)


def test_run_has_the_metric_names_and_values_of_the_command_line(tmp_path: Path) -> None:
    run = slackline.run(mixed())
    assert run.summary["policy"] == "edf"
    hog = run.vcpus[0]
    assert hog["name"] == "hog"
    assert hog["delivered_ppm"] == 300_000
    assert run.metric("delivered of hog") == 300_000
    assert run.metric("misses of total") == 0
    with pytest.raises(KeyError, match="beauty"):
        run.metric("beauty of hog")
    if not PROGRAM.exists():
        pytest.skip("needs a built program")
    file = tmp_path / "it.toml"
    file.write_text(HOST.format(policy="edf", cpus=1) + MIXED)
    for seed in (1, 7):
        words = [str(PROGRAM), "sim", str(file), "--seed", str(seed), "--json"]
        [expected] = json.loads(subprocess.check_output(words))["runs"]
        run = slackline.run(slackline.Scenario.read(file), seed=seed)
        assert run.vcpus == expected["vcpus"]
        assert run.cpus == expected["cpus"]
        assert run.domains == expected["domains"]
        assert run.summary == {name: expected[name] for name in run.summary}


def test_runs_with_the_same_seed_are_equal_and_with_another_seed_differ() -> None:
    first, again = (slackline.run(mixed(), seed=7).vcpus for _ in range(2))
    other = slackline.run(mixed(), seed=8).vcpus
    assert first == again != other


def test_exception_for_a_wrong_scenario_has_line_column_and_hint() -> None:
    with pytest.raises(slackline.ScenarioError) as raised:
        slackline.Scenario(HOST.format(policy="edf", cpus=1) + MIXED.replace("slice", "slise", 1))
    error = raised.value
    assert (error.line, error.column) == (10, 15)
    assert str(error).startswith(f"{error.line}:{error.column}: ")
    assert "slise" in str(error) and "slice" in str(error.hint)
    with pytest.raises(slackline.ScenarioError, match="no policy is called"):
        slackline.run(mixed(), policy="edff")
    with pytest.raises(OSError, match="nothing.toml"):
        slackline.Scenario.read("nothing.toml")
    with pytest.raises(slackline.ScenarioError, match="not longer than the warm-up of 1s"):
        slackline.run(mixed(), length="1s")


def test_scenario_that_reserves_too_much_is_not_admitted() -> None:
    text = HOST.format(policy="edf", cpus=1) + MIXED.replace('"3ms"', '"9ms"')
    scenario = slackline.Scenario(text)
    with pytest.raises(slackline.NotAdmitted):
        scenario.check()
    with pytest.raises(slackline.NotAdmitted):
        slackline.run(scenario)


def test_run_intervals_reach_arrow_and_add_up_to_the_delivered_time() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    run = slackline.run(mixed(), columns=True)
    assert run.intervals is not None
    table = pyarrow.table(run.intervals)
    assert table.num_rows == len(run.intervals) > 100
    rows = table.to_pylist()
    assert all(row["from_ns"] <= row["to_ns"] for row in rows)
    second = 1_000_000_000
    hog = sum(
        min(row["to_ns"], 3 * second) - max(row["from_ns"], second)
        for row in rows
        if row["vcpu"] == "hog" and row["to_ns"] > second
    )
    assert abs(hog - run.vcpus[0]["delivered_ns"]) <= 10_000
    assert set(pyarrow.table(run.changes).column("event").to_pylist()) >= {"woke", "blocked"}


def test_arrow_tables_have_the_same_metrics_as_the_run() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    run = slackline.run(mixed())
    assert pyarrow.table(run.table()).to_pylist() == run.vcpus
    assert pyarrow.table(run.table("summary")).to_pylist() == [run.summary]
    assert len(run.table("tasks")) == len(run.tasks) == 0
    with pytest.raises(slackline.SlacklineError, match="there are no rows `disks`"):
        run.table("disks")
    rows = pyarrow.table(slackline.run_rows([mixed(), mixed()], ["edf", None], [3, 4]))
    heads = [(row["scenario"], row["policy"], row["seed"]) for row in rows.to_pylist()[::3]]
    assert heads == [(at, policy, seed) for at in (0, 1) for policy in ("edf", "edf") for seed in (3, 4)]
    second = slackline.run(mixed(), seed=4).vcpus
    assert [{**row} for row in rows.slice(3, 3).drop(["scenario", "policy", "seed"]).to_pylist()] == second


def test_tables_of_systing_have_its_columns_and_the_delivered_time(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    run = slackline.run(mixed(), columns=True)
    paths = slackline.to_parquet(run, tmp_path / "out", tables="systing")
    tables = {Path(path).stem: parquet.read_table(path) for path in paths}
    assert {name: table.column_names for name, table in tables.items()} == {
        "process": ["upid", "pid", "name", "parent_upid"],
        "thread": ["utid", "tid", "name", "upid"],
        "sched_slice": ["ts", "dur", "cpu", "utid", "end_state", "priority"],
        "thread_state": ["ts", "dur", "utid", "state", "cpu"],
    }
    slices = tables["sched_slice"].to_pylist()
    threads = {row["name"]: row["utid"] for row in tables["thread"].to_pylist()}
    assert sorted(threads) == ["batch", "hog", "web"]
    intervals = pyarrow.table(run.intervals).to_pylist()
    for name, utid in threads.items():
        ours = sum(row["to_ns"] - row["from_ns"] for row in intervals if row["vcpu"] == name)
        assert sum(row["dur"] for row in slices if row["utid"] == utid) == ours
    # A vCPU that never blocks is only preempted. A vCPU that sleeps blocks and wakes.
    ends = {name: {row["end_state"] for row in slices if row["utid"] == utid} for name, utid in threads.items()}
    assert ends["hog"] == {None} and 1 in ends["web"]
    states = [row for row in tables["thread_state"].to_pylist() if row["utid"] == threads["web"]]
    begins = {row["ts"] for row in slices if row["utid"] == threads["web"]}
    woken = [row for row in states if row["state"] == 0 and row["dur"] > 0]
    assert woken and all(row["ts"] + row["dur"] in begins for row in woken)
    with pytest.raises(ValueError, match="use slackline or systing"):
        slackline.to_parquet(run, tmp_path, tables="csv")  # type: ignore[arg-type]
    with pytest.raises(slackline.SlacklineError, match="columns=True"):
        slackline.to_parquet(slackline.run(mixed()), tmp_path, tables="systing")


def test_round_robin_in_python_gives_the_metrics_of_the_built_in_policy() -> None:
    for cpus in (1, 2):
        scenario = mixed("round-robin", cpus)
        built_in = slackline.run(scenario)
        python = slackline.run(scenario, policy=example.RoundRobin)
        assert python.summary["policy"] == "RoundRobin"
        assert python.vcpus == built_in.vcpus
        assert python.cpus == built_in.cpus


def test_edf_in_python_gives_the_metrics_of_the_built_in_policy() -> None:
    built_in = slackline.run(mixed())
    python = slackline.run(mixed(), policy=example.Edf)
    assert python.vcpus == built_in.vcpus
    assert python.cpus == built_in.cpus


def test_weights_divide_a_cpu_under_lottery_and_credit_two() -> None:
    text = MIXED.replace('work = { kind = "interactive", compute = "exponential 1ms", '
                         'sleep = "exponential 5ms" }', 'work = { kind = "spin" }')
    scenario = slackline.Scenario(HOST.format(policy="credit", cpus=1) + text)
    for policy, off in ((example.Lottery, 100_000), (example.CreditTwo, 5_000)):
        run = slackline.run(scenario, policy=policy, length="21s")
        shares = [vcpu["delivered_ppm"] for vcpu in run.vcpus]
        assert abs(shares[0] - 500_000) < off, (policy.__name__, shares)
        assert sum(shares) > 999_000


def test_policy_that_breaks_the_contract_or_raises_ends_the_run() -> None:
    class Blind(slackline.Policy):
        def pick(self, now: int, cpu: int, current: int | None, eligible: list[int]) -> int:
            return 1

    with pytest.raises(slackline.ContractBroken):
        slackline.run(mixed("round-robin"), policy=Blind)

    class Broken(slackline.Policy):
        def pick(self, now: int, cpu: int, current: int | None, eligible: list[int]) -> None:
            raise RuntimeError("no idea")

    with pytest.raises(RuntimeError, match="no idea"):
        slackline.run(mixed("round-robin"), policy=Broken)

    class Refuses(slackline.Policy):
        def admit(self, now: int, vcpu: int, share: dict[str, int]) -> None:
            raise slackline.NotAdmitted("not today")

    with pytest.raises(slackline.NotAdmitted, match="not today"):
        slackline.run(mixed("round-robin"), policy=Refuses)
    with pytest.raises(TypeError, match="a class"):
        slackline.run(mixed(), policy=3)


def test_compare_has_a_row_for_each_policy_seed_and_vcpu() -> None:
    rows = slackline.compare(mixed(), ["edf", "credit", example.CreditTwo], seeds=[1, 2])
    assert [(row["policy"], row["seed"]) for row in rows[::3]] == [
        ("edf", 1), ("edf", 2), ("credit", 1), ("credit", 2), ("CreditTwo", 1), ("CreditTwo", 2)
    ]
    single = slackline.run(mixed(), policy="credit", seed=2).vcpus
    assert [{**row} for row in rows if (row["policy"], row["seed"]) == ("credit", 2)] == [
        {"policy": "credit", "seed": 2, **vcpu} for vcpu in single
    ]


def test_other_threads_run_while_a_scenario_is_simulated() -> None:
    counted = 0
    ends = threading.Event()

    def count() -> None:
        nonlocal counted
        while not ends.is_set():
            counted += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    began = time.monotonic()
    slackline.run(mixed(), length="200s")
    took = time.monotonic() - began
    before = counted
    ends.set()
    thread.join()
    assert before > took * 1000 / 50, f"{before} increments in {took} s"
