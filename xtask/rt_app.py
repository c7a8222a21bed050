"""Compares the CPU time of each thread in rt-app with its CPU time after import into Slackline.

usage: rt_app.py SLACKLINE SECONDS

Each workload runs three times: by rt-app itself on this host, imported and simulated, and imported
and live under the dispatcher. rt-app's threads use SCHED_DEADLINE. The CPU time of its threads is
the kernel's count (`schedstat`), from one second after the start until one second before the end.
The programs run one after another. Slackline uses the last CPU. Needs root and Debian's package
`rt-app`.

The event `runtime` computes until a given time has passed, including the time of preemptions. How
often a thread is preempted depends on the number of CPUs: the kernel runs rt-app's threads on all
CPUs, and Slackline runs them on one CPU. The event `run` computes a given number of loops, whose
duration rt-app calibrates to whole nanoseconds, so a row whose CPU time depends on the calibration
has no verdict. rt-app calibrates by the wall clock. On a busy CPU, the loops would be far too few,
so rt-app's main thread has a real-time priority. rt-app writes no log, because writing it takes CPU
time of the threads that are compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: Largest allowed difference between the CPU times, as a fraction of rt-app's CPU time.
PROMISED = 0.02

CPU = max(os.sched_getaffinity(0))

Tasks = dict[str, dict[str, object]]


def periodic(event: str, work: int, runtime: int, period: int) -> dict[str, object]:
    """Return a thread that works for some microseconds in each period."""
    return {
        "policy": "SCHED_DEADLINE",
        "dl-runtime": runtime,
        "dl-period": period,
        "dl-deadline": period,
        event: work,
        # The importer treats all timers as absolute.
        "timer": {"ref": "unique", "period": period, "mode": "absolute"},
    }


#: Each workload: name, threads, and true if it has a verdict.
WORKLOADS: list[tuple[str, Tasks, bool]] = [
    ("jobs of 20 ms every 100 ms", {"a": periodic("runtime", 20_000, 30_000, 100_000)}, True),
    ("jobs of 2 ms every 10 ms", {"a": periodic("runtime", 2_000, 3_000, 10_000)}, True),
    (
        "three threads, 70 %",
        {
            "a": periodic("runtime", 3_000, 4_000, 10_000),
            "b": periodic("runtime", 5_000, 6_000, 25_000),
            "c": periodic("runtime", 16_000, 20_000, 80_000),
        },
        True,
    ),
    ("throttled: 50 of 100 ms, 30 reserved", {"a": periodic("run", 50_000, 30_000, 100_000)}, True),
    (
        "the same 50 ms as elapsed time",
        {"a": periodic("runtime", 50_000, 30_000, 100_000)},
        True,
    ),
    ("calibrated loops, 20 %", {"a": periodic("run", 2_000, 3_000, 10_000)}, False),
]


def cpu_times(pid: int) -> dict[int, int]:
    """Return the CPU time of each thread of a process in nanoseconds."""
    times = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            times[int(task.name)] = int((task / "schedstat").read_text().split()[0])
        except (OSError, IndexError):
            pass  # The thread has ended.
    return times


def name_of(pid: int, tid: int) -> str:
    return Path(f"/proc/{pid}/task/{tid}/comm").read_text().strip()


def become_real_time() -> None:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def shares_of_rt_app(file: Path, tasks: Tasks, seconds: int) -> dict[str, float]:
    """Run rt-app, and return the share of a CPU that each thread used."""
    # The affinity is not restricted, because the kernel refuses SCHED_DEADLINE in that case.
    program = subprocess.Popen(
        ["rt-app", str(file)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=file.parent,
        preexec_fn=become_real_time,
    )
    try:
        names: dict[int, str] = {}
        limit = time.monotonic() + 60
        # The threads start after the calibration, which takes some seconds.
        while not tasks.keys() <= set(names.values()):
            if program.poll() is not None or time.monotonic() > limit:
                raise SystemExit(f"rt-app failed: {program.communicate()[1].decode()}")
            time.sleep(0.02)
            try:
                names = {tid: name_of(program.pid, tid) for tid in cpu_times(program.pid)}
            except OSError:
                continue
        time.sleep(1)
        began, first = time.monotonic_ns(), cpu_times(program.pid)
        time.sleep(seconds - 2)
        ended, last = time.monotonic_ns(), cpu_times(program.pid)
    finally:
        program.terminate()
        program.wait()
    return {
        name: (last[tid] - first[tid]) / (ended - began)
        for tid, name in names.items()
        if name in tasks
    }


def shares_of_slackline(program: str, command: str, scenario: Path) -> dict[str, float]:
    words = [program, command, str(scenario), "--json"]
    if command == "run":
        words += ["--cpus", str(CPU)]
    output = subprocess.run(words, capture_output=True, text=True)
    if output.returncode != 0:
        raise SystemExit(f"slackline {command} failed: {output.stderr}")
    return {row["name"]: row["delivered_ppm"] / 1e6 for row in rows(json.loads(output.stdout))}


def rows(answer: dict[str, object]) -> list[dict[str, object]]:
    runs = answer["runs"]
    return runs[0]["vcpus"]


def main(program: str, seconds: int) -> int:
    failed = 0
    print(f"{'workload':38} {'thread':7} {'rt-app %':>9} {'sim %':>8} {'off %':>7} {'live %':>8} {'off %':>7}")
    for title, tasks, is_judged in WORKLOADS:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "workload.json"
            glob = {"duration": seconds, "calibration": f"CPU{CPU}", "log_size": "Disable"}
            file.write_text(json.dumps({"tasks": tasks, "global": glob}))
            scenario = Path(folder) / "workload.toml"
            words = [program, "import", "rt-app", str(file), str(scenario)]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            theirs = shares_of_rt_app(file, tasks, seconds)
            ours = {how: shares_of_slackline(program, how, scenario) for how in ("sim", "run")}
        for name in tasks:
            offs = {how: shares[name] / theirs[name] - 1 for how, shares in ours.items()}
            text = f"{title:38} {name:7} {theirs[name] * 100:9.3f}"
            for how, off in offs.items():
                text += f" {ours[how][name] * 100:8.3f} {off * 100:+7.2f}"
            is_off = max(map(abs, offs.values())) > PROMISED
            failed += is_judged and is_off
            print(text, "" if is_judged else "(not judged)", "OFF" if is_judged and is_off else "")
    print("held" if failed == 0 else f"not reached: {failed} threads differ by more than {PROMISED:.0%}")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
