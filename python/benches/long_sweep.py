"""Measures a long sweep on a Dask cluster: `long_sweep.py SCENARIOS`.

A scheduler and two worker processes run on this machine. First 10,000 scenarios are swept, then
SCENARIOS. Reports how much of the CPU time of all processes was parsing and simulation, and how
far the memory of the scheduler grew. Fails beyond the limits of PYT-33 and SWP-13.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import distributed

import slackline
from slackline import _sweep

WORKERS = 2
#: Variables with which the book starts workers.
AS_DOCUMENTED = {"RAYON_NUM_THREADS": "1", "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False"}
FIRST = 10_000
#: Maximum CPU time of Python and Dask for each run, in microseconds.
MOST_OVERHEAD = 50.0
#: Maximum growth of the scheduler's memory from the first sweep to the second, in MiB.
MOST_GROWTH = 64.0

#: Scenario whose simulation takes about a millisecond of CPU time.
TEXT = """title = "two guests"
length = "LENGTH"
policy = { name = "edf" }
[[domain]]
name = "web"
work = { kind = "interactive", compute = "exponential 1ms", sleep = "exponential 5ms" }
share.edf = { slice = "SLICE", period = "10ms" }
[[domain]]
name = "db"
work = { kind = "spin" }
share.edf = { slice = "4ms", period = "10ms" }
"""


def count_runs() -> None:
    """Count the runs of this process from now on.

    The count is kept in the module of the sweeps, because a worker gets a copy of this module for
    each function.
    """
    call = vars(_sweep)["_sweep_rows"]
    counts = {"runs": 0}

    def counting(*arguments: Any, **options: Any) -> Any:
        counts["runs"] += len(arguments[1])
        return call(*arguments, **options)

    vars(_sweep)["_sweep_rows"] = counting
    vars(_sweep)["counts_of_bench"] = counts


def read_meter() -> tuple[float, int, float]:
    """Return the time of parsing and simulation, the runs, and all CPU time of this process.

    Parsing and simulation use threads that Python does not know.
    """
    used = time.process_time()
    ids = [thread.native_id for thread in threading.enumerate()]
    files = [Path(f"/proc/self/task/{number}/schedstat") for number in ids]
    of_python = sum(int(file.read_text().split()[0]) for file in files) / 1e9
    return used - of_python, vars(_sweep)["counts_of_bench"]["runs"], used


def memory_of(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {pid} has no VmRSS")


def cpu_time_of(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def scenario_length() -> str:
    """Return a length of `TEXT` whose simulation takes about a millisecond."""
    milliseconds = 100
    while True:
        length = f"{milliseconds}ms"
        scenario = slackline.Scenario(text(0, length))
        began = time.process_time()
        for seed in range(20):
            slackline.run(scenario, seed=seed)
        if time.process_time() - began >= 20 * 0.001:
            return length
        milliseconds = milliseconds * 5 // 4


def text(number: int, length: str) -> str:
    """Return the scenario with a number. The slice has one of 4,000 values from 1 us on."""
    return TEXT.replace("LENGTH", length).replace("SLICE", f"{1 + number % 4000}us")


def sweep(client: Any, scheduler: int, count: int, length: str) -> tuple[float, float]:
    """Sweep `count` scenarios. Return the overhead of a run in us, and the scheduler's MiB."""
    scenarios = [slackline.Scenario(text(number, length)) for number in range(count)]
    folder = tempfile.mkdtemp(prefix="slackline-sweep-")
    before = client.run(read_meter).values()
    at_start = time.process_time() + cpu_time_of(scheduler)
    began = time.monotonic()
    slackline.sweep(scenarios, ["edf"], [1], folder, client=client)
    wall = time.monotonic() - began
    after = client.run(read_meter).values()
    others = time.process_time() + cpu_time_of(scheduler) - at_start
    growth = [sum(pair) for pair in zip(*after, strict=True)]
    start = [sum(pair) for pair in zip(*before, strict=True)]
    inside, runs, workers = (now - then for now, then in zip(growth, start, strict=True))
    if runs != count:
        raise SystemExit(f"{runs:.0f} runs were made instead of {count}")
    overhead = (workers - inside + others) / count * 1e6
    memory = memory_of(scheduler)
    part = 100 * inside / (workers + others)
    print(
        f"{count:>9} scenarios: {wall:7.1f} s, {inside / count * 1e6:6.0f} us of parsing and "
        f"simulation a run, {overhead:5.1f} us of Python and Dask a run, {part:4.1f} % of all CPU "
        f"time in parsing and simulation, scheduler {memory:6.1f} MiB",
        flush=True,
    )
    files = len(os.listdir(folder)) - 1
    shutil.rmtree(folder)
    print(f"{'':>9} {files} chunks, {wall / files * WORKERS:.2f} s each", flush=True)
    return overhead, memory


@contextmanager
def started(*words: str) -> Iterator[int]:
    """Start a `dask` program in a process group of its own, and end the group."""
    program = Path(sys.executable).parent / "dask"
    process = subprocess.Popen(
        [program, *words, "--no-dashboard"],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **AS_DOCUMENTED},
    )
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def connected(file: str) -> Any:
    """Connect to the scheduler that writes its address to a file."""
    client: Any = distributed.Client
    return client(scheduler_file=file, timeout=60)


def main() -> int:
    count = int(sys.argv[1])
    length = scenario_length()
    folder = tempfile.mkdtemp(prefix="slackline-cluster-")
    file = f"{folder}/scheduler.json"
    at = ["--host", "127.0.0.1", "--port", "0"]
    workers = ["--nworkers", str(WORKERS), "--nthreads", "1", "--local-directory", folder]
    with (
        started("scheduler", *at, "--scheduler-file", file) as scheduler,
        started("worker", "--scheduler-file", file, *workers),
        connected(file) as client,
    ):
        client.wait_for_workers(WORKERS, timeout=60)
        client.run(count_runs)
        _, first = sweep(client, scheduler, FIRST, length)
        overhead, last = sweep(client, scheduler, count, length)
    shutil.rmtree(folder, ignore_errors=True)
    good = overhead <= MOST_OVERHEAD and last - first <= MOST_GROWTH
    print(f"scheduler grew by {last - first:.1f} MiB: {'held' if good else 'not reached'}")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
