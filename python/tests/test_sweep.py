"""Tests of sweeps: resumed after an interruption, and on a Dask cluster that loses a worker."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

import slackline
from slackline import _sweep

pytest.importorskip("pyarrow")

TEXT = """title = "one hog, one guest"
length = "2s"
policy = { name = "credit" }
[[domain]]
name = "hog"
work = { kind = "spin" }
share.credit = { weight = 512 }
[[domain]]
name = "web"
work = { kind = "interactive", compute = "exponential 1ms", sleep = "exponential 5ms" }
share.credit = { weight = 256 }
"""


def scenarios() -> list[slackline.Scenario]:
    return [slackline.Scenario(TEXT), slackline.Scenario(TEXT.replace("512", "128"))]


def test_sweep_has_a_row_for_each_run_and_vcpu_in_order(tmp_path: Path) -> None:
    slackline.sweep(scenarios(), ["credit", "round-robin"], range(1, 4), tmp_path, length="1500ms")
    table = slackline.load(tmp_path)
    rows = table.to_pylist()
    assert len(rows) == 2 * 2 * 3 * 2
    assert [(row["scenario"], row["policy"], row["seed"]) for row in rows[::2]] == [
        (scenario, policy, seed)
        for scenario in (0, 1)
        for policy in ("credit", "round-robin")
        for seed in (1, 2, 3)
    ]
    single = slackline.run(scenarios()[1], policy="credit", seed=3, length="1500ms").vcpus
    assert rows[16]["delivered_ns"] == single[0]["delivered_ns"]


def test_interrupted_sweep_repeats_only_missing_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sweep, "CHUNK", 0.0)
    arguments = (scenarios(), ["credit"], range(1, 6), tmp_path)
    slackline.sweep(*arguments)
    first = slackline.load(tmp_path)
    files = sorted(tmp_path.glob("*.parquet"))
    assert len(files) == 10
    files[3].unlink()
    kept = files[4].stat().st_mtime_ns
    with pytest.raises(slackline.SlacklineError, match="1 of 10 chunks are missing"):
        slackline.load(tmp_path)
    slackline.sweep(*arguments)
    assert slackline.load(tmp_path).equals(first)
    assert files[4].stat().st_mtime_ns == kept
    with pytest.raises(slackline.SlacklineError, match="another sweep"):
        slackline.sweep(scenarios(), ["credit"], range(1, 7), tmp_path)


def test_sweep_on_dask_gives_the_same_table_although_a_worker_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(_sweep, "CHUNK", 0.0)
    seeds = range(1, 60)
    there = tmp_path / "there"
    slackline.sweep(scenarios(), ["credit"], seeds, tmp_path / "here", length="20s")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        victim = next(iter(client.run(os.getpid).values()))

        def kill_in_the_middle() -> None:
            while len(list(there.glob("*.parquet"))) < 5:
                time.sleep(0.001)
            os.kill(victim, signal.SIGKILL)

        killer = threading.Thread(target=kill_in_the_middle)
        killer.start()
        slackline.sweep(scenarios(), ["credit"], seeds, there, length="20s", client=client)
        killer.join()
        assert victim not in client.run(os.getpid).values()
    assert slackline.load(there).equals(slackline.load(tmp_path / "here"))


def test_dask_workers_of_another_version_are_refused(tmp_path: Path) -> None:
    class Client:
        def run(self, function: object, on_error: str) -> dict[str, str]:
            return {"tcp://127.0.0.1:1": "0.0.9"}

    with pytest.raises(slackline.SlacklineError, match=r"another version than 0\.1\.0"):
        slackline.sweep(scenarios(), ["credit"], [1], tmp_path, client=Client())
