"""Tables of a run with the names and columns of systing, for its `systing-analyze` and for SQL."""

from __future__ import annotations

from typing import Any

from ._errors import SlacklineError
from ._slackline import Run

#: State of a blocked thread in the kernel: TASK_INTERRUPTIBLE.
_BLOCKED = 1


def tables(run: Run) -> dict[str, Any]:
    """Return the tables `process`, `thread`, `sched_slice` and `thread_state` of a run.

    A VM is a process, and a vCPU is a thread. Times are nanoseconds since the start of the run.
    `end_state` is 1 if the vCPU blocked, left or was paused, and null if it was still runnable.
    `thread_state` has a row of state 0 for each wake-up, with the CPU on which the vCPU ran before,
    and a row of state 1 for each block. A row has a `dur` of 0 if the vCPU stays in this state
    until the end of the run.
    """
    import pyarrow

    if run.intervals is None or run.changes is None:
        raise SlacklineError("the run has no columns: run it with columns=True")
    intervals = pyarrow.table(run.intervals).to_pydict()
    changes = pyarrow.table(run.changes).to_pydict()
    rows = run.vcpus
    threads = {row["name"]: number for number, row in enumerate(rows, 1)}
    for name in [*intervals["vcpu"], *changes["vcpu"]]:
        threads.setdefault(name, len(threads) + 1)
    domains = {row["name"] for row in run.domains}
    # The vCPUs of a VM with several vCPUs are called VM.0, VM.1 and so on.
    vm_of = {name: name if name in domains else name.rpartition(".")[0] for name in threads}
    vms: dict[str, int] = {}
    for name in threads:
        vms.setdefault(vm_of[name], len(vms) + 1)
    process = [
        {"upid": upid, "pid": upid, "name": name, "parent_upid": None} for name, upid in vms.items()
    ]
    thread = [
        {"utid": utid, "tid": utid, "name": name, "upid": vms[vm_of[name]]}
        for name, utid in threads.items()
    ]
    slices, last_cpu = _slices(intervals, changes, threads)
    states = _states(changes, intervals, threads, last_cpu)
    return {
        "process": pyarrow.Table.from_pylist(process, schema=_schema("process")),
        "thread": pyarrow.Table.from_pylist(thread, schema=_schema("thread")),
        "sched_slice": pyarrow.Table.from_pylist(slices, schema=_schema("sched_slice")),
        "thread_state": pyarrow.Table.from_pylist(states, schema=_schema("thread_state")),
    }


Columns = dict[str, list[Any]]


def _slices(
    intervals: Columns, changes: Columns, threads: dict[str, int]
) -> tuple[list[dict[str, Any]], dict[str, list[tuple[int, int]]]]:
    """Return the slices by time, and for each vCPU the ends of its slices with their CPUs."""
    stops = {"blocked", "left", "paused"}
    stopped = {
        (name, at)
        for name, at, event in zip(changes["vcpu"], changes["at_ns"], changes["event"], strict=True)
        if event in stops
    }
    ends: dict[str, list[tuple[int, int]]] = {name: [] for name in threads}
    slices = []
    columns = (intervals[name] for name in ("from_ns", "to_ns", "cpu", "vcpu"))
    for begin, end, cpu, name in sorted(zip(*columns, strict=True)):
        ends[name].append((end, cpu))
        slices.append(
            {
                "ts": begin,
                "dur": end - begin,
                "cpu": cpu,
                "utid": threads[name],
                "end_state": _BLOCKED if (name, end) in stopped else None,
                "priority": 0,
            }
        )
    return slices, ends


def _states(
    changes: Columns,
    intervals: Columns,
    threads: dict[str, int],
    ends: dict[str, list[tuple[int, int]]],
) -> list[dict[str, Any]]:
    """Return the wake-ups and blocks by time."""
    import bisect

    begins: dict[str, list[int]] = {name: [] for name in threads}
    for begin, name in sorted(zip(intervals["from_ns"], intervals["vcpu"], strict=True)):
        begins[name].append(begin)
    wakes: dict[str, list[int]] = {name: [] for name in threads}
    events = sorted(zip(changes["at_ns"], changes["vcpu"], changes["event"], strict=True))
    for at, name, event in events:
        if event == "woke":
            wakes[name].append(at)

    def until(times: list[int], at: int) -> int:
        place = bisect.bisect_left(times, at)
        return times[place] - at if place < len(times) else 0

    states = []
    for at, name, event in events:
        if event not in ("woke", "blocked"):
            continue
        is_wake = event == "woke"
        before = bisect.bisect_right(ends[name], (at, 1 << 30)) - 1
        states.append(
            {
                "ts": at,
                "dur": until(begins[name] if is_wake else wakes[name], at),
                "utid": threads[name],
                "state": 0 if is_wake else _BLOCKED,
                "cpu": ends[name][before][1] if is_wake and before >= 0 else None,
            }
        )
    return states


def _schema(table: str) -> Any:
    """Return the columns that systing gives a table, with their types."""
    import pyarrow

    whole, small, text = pyarrow.int64(), pyarrow.int32(), pyarrow.string()
    columns: dict[str, list[tuple[str, Any, bool]]] = {
        "process": [
            ("upid", whole, False),
            ("pid", small, False),
            ("name", text, True),
            ("parent_upid", whole, True),
        ],
        "thread": [
            ("utid", whole, False),
            ("tid", small, False),
            ("name", text, True),
            ("upid", whole, True),
        ],
        "sched_slice": [
            ("ts", whole, False),
            ("dur", whole, False),
            ("cpu", small, False),
            ("utid", whole, False),
            ("end_state", small, True),
            ("priority", small, False),
        ],
        "thread_state": [
            ("ts", whole, False),
            ("dur", whole, False),
            ("utid", whole, False),
            ("state", small, False),
            ("cpu", small, True),
        ],
    }
    return pyarrow.schema([pyarrow.field(*column) for column in columns[table]])
