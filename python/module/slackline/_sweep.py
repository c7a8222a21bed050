"""Sweeps: many runs in chunks, on this machine or on a Dask cluster, as Parquet files."""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import json
import operator
import os
import queue
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import _slackline
from ._errors import NotAdmitted, SlacklineError
from ._slackline import Scenario, __version__, _sweep_rows, run

#: Approximate duration of the runs of a chunk, in seconds of one core.
CHUNK = 1.0

#: Maximum number of runs of a chunk.
MAX_RUNS = 4096

#: Maximum number of runs that are measured for the division into chunks. With more policies than
#: this number, the maximum is one run for each policy.
MEASURED = 20

#: Time in seconds after which no further run is measured.
MEASURING = 2.0

#: Assumed duration of a run in seconds, if all measured runs were refused.
UNKNOWN = 0.01

#: Maximum number of unfinished chunks on a Dask cluster for each thread of its workers. One chunk
#: runs, and the others wait so that the thread is never idle.
AHEAD = 3

#: Time in seconds after which the threads of a Dask cluster are counted again.
COUNTING = 5.0

#: File with the scenarios of a sweep: a JSON string on each line.
SCENARIOS = "scenarios.jsonl"

#: File with the policies, the seeds and the length of a sweep.
INPUTS = "inputs.json"


def sweep(
    scenarios: Sequence[Scenario],
    policies: Sequence[str],
    seeds: Iterable[int],
    folder: str | os.PathLike[str],
    *,
    length: str | None = None,
    client: Any = None,
) -> Path:
    """Run all scenarios under all policies with all seeds, and write the metrics to a folder.

    The runs are divided into chunks that take about one second. Each chunk becomes one Parquet
    file, named by a hash of the sweep's inputs and the chunk's number. If an interrupted sweep is
    started again, it makes only the missing chunks. `load` reads the result. Needs pyarrow.

    A run that admission refuses has one row, whose column `outcome` is "refused". All other rows
    have the outcome "done". Scenarios that name files are refused.

    With `client`, a `distributed.Client`, the chunks run on its workers, which must see the folder
    under the same path. A chunk whose worker dies is run again. Workers with another build of
    Slackline are refused. At any time, only a few chunks for each thread of the workers are
    submitted.
    """
    if isinstance(policies, str):
        raise TypeError("policies must be a list, such as ['edf', 'credit']")
    texts = [_text(number, scenario) for number, scenario in enumerate(scenarios)]
    chosen = [operator.index(seed) for seed in seeds]
    for name, values in (("scenario", texts), ("policy", policies), ("seed", chosen)):
        if not values:
            raise SlacklineError(f"cannot sweep without a {name}: give at least one {name}")
    if client is not None:
        _check_workers(client)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    plan = _plan(place, texts, policies, chosen, length)
    # A listing of the folder is current on a network file system too, unlike a repeated look-up of
    # a file that was missing before.
    present = set(os.listdir(place))
    chunks = _chunks(place, plan, len(policies) * len(chosen))
    missing = (chunk for chunk in chunks if chunk["file"] not in present)
    path = str(place.absolute())
    if client is None:
        for chunk in missing:
            run_chunk(path, chunk)
    else:
        _run_on(client, path, missing)
    return place


def load(folder: str | os.PathLike[str]) -> Any:
    """Return the metrics of a sweep as one `pyarrow.Table`, in the order of its inputs."""
    import pyarrow
    import pyarrow.parquet

    place = Path(folder)
    files = json.loads((place / "plan.json").read_text())["files"]
    present = set(os.listdir(place))
    missing = [name for name in files if name not in present]
    if missing:
        raise SlacklineError(
            f"{len(missing)} of {len(files)} chunks are missing in {place}: run `sweep` again"
        )
    tables = [pyarrow.parquet.read_table(place / name) for name in files]
    return pyarrow.concat_tables(tables, promote_options="default")


def run_chunk(folder: str, chunk: dict[str, Any]) -> int:
    """Run the scenarios of a chunk, write its file, and return the number of rows."""
    import pyarrow
    import pyarrow.parquet

    if chunk["build"] != _build():
        raise SlacklineError(
            f"{socket.gethostname()} has build {_build()} of Slackline, and the sweep has build "
            f"{chunk['build']}: install the same wheel on all hosts"
        )
    place = Path(folder)
    if not _has_plan(place, chunk["plan"]):
        raise SlacklineError(
            f"{socket.gethostname()} does not see this sweep in {folder}: choose a folder that all "
            "workers share under the same path"
        )
    texts, runs, length = _inputs_of(place, chunk)
    rows = _sweep_rows(texts, runs, length=length)
    table = pyarrow.table(rows)
    path = place / chunk["file"]
    # The final name appears only when the file is complete, even if the worker is killed.
    part = path.with_suffix(f".{os.getpid()}.part")
    pyarrow.parquet.write_table(table, part)
    part.replace(path)
    return int(table.num_rows)


def _run_on(client: Any, path: str, chunks: Iterable[dict[str, Any]]) -> None:
    """Run chunks on the workers of a client.

    The rows of a finished chunk are in a file, so its result is dropped at once. The number of
    submitted chunks is limited, and their inputs are in files too, because the scheduler keeps the
    arguments of its last 1,000 tasks. So the memory of the scheduler does not depend on the length
    of the sweep.
    """
    settled: queue.SimpleQueue[Any] = queue.SimpleQueue()
    waiting: dict[str, Any] = {}

    def settle() -> None:
        future = settled.get()
        if future.status != "finished":
            # This raises the exception of the chunk. If only its result was lost, this waits until
            # the chunk has run again.
            future.result()
        del waiting[future.key]
        future.release()

    most, counted = 0, -COUNTING
    try:
        for chunk in chunks:
            if time.monotonic() - counted >= COUNTING:
                most, counted = AHEAD * max(1, sum(client.nthreads().values())), time.monotonic()
            while len(waiting) >= most:
                settle()
            future = client.submit(run_chunk, path, chunk, retries=3, pure=False)
            waiting[future.key] = future
            future.add_done_callback(settled.put)
        while waiting:
            settle()
    finally:
        # After an exception, the other chunks are cancelled.
        for future in waiting.values():
            future.release()


def _text(number: int, scenario: Scenario) -> str:
    """Return the text of a scenario. Refuse a scenario that needs other files."""
    if scenario.names_files:
        error = SlacklineError(
            f"cannot sweep scenario {number}, `{scenario.title}`: it names files, and a sweep has "
            "only the text of each scenario"
        )
        error.hint = "write the jobs into the scenario, as `import_workload` does"
        raise error
    return scenario.text


def _plan(
    place: Path,
    texts: Sequence[str],
    policies: Sequence[str],
    seeds: Sequence[int],
    length: str | None,
) -> dict[str, Any]:
    """Return the plan of a sweep: the number of runs and the file of each chunk.

    If the folder has no plan yet, write a new plan. Refuse a plan of another sweep or build.
    """
    inputs = hashlib.sha256(json.dumps([[*policies], seeds, length]).encode())
    for text in texts:
        # The length before each text makes the division into texts unique.
        inputs.update(f"{len(text)}:{text}".encode())
    digest = inputs.hexdigest()
    path = place / "plan.json"
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        if found["build"] != _build():
            raise SlacklineError(
                f"{place} has results of build {found['build']} of Slackline, and this is build "
                f"{_build()}: choose an empty folder"
            )
        if found["inputs"] != digest:
            raise SlacklineError(f"{place} has another sweep: choose an empty folder")
        return found
    _replace(place / SCENARIOS, (json.dumps(text).encode() + b"\n" for text in texts))
    inputs_of_all = {"policies": [*policies], "seeds": seeds, "length": length}
    _replace(place / INPUTS, [json.dumps(inputs_of_all).encode()])
    counts = _divided(texts, policies, seeds, length)
    files = [_name(digest, at, count) for at, count in enumerate(counts)]
    # `_has_plan` expects that `inputs` is the first key.
    plan: dict[str, Any] = {"inputs": digest, "build": _build(), "runs": counts, "files": files}
    _replace(path, [json.dumps(plan).encode()])
    return plan


def _replace(path: Path, content: Iterable[bytes]) -> None:
    """Write a file. Its final name appears only when the file is complete."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.writelines(content)
    part.replace(path)


def _chunks(place: Path, plan: dict[str, Any], runs_of_each: int) -> Iterator[dict[str, Any]]:
    """Yield the chunks into which the plan of a sweep divides the runs.

    A chunk has the number of its first run, the number of its runs, and the place of its first
    scenario in the file of all scenarios. `runs_of_each` is the number of runs of a scenario.
    """
    with (place / SCENARIOS).open("rb") as file:
        places = list(itertools.accumulate(map(len, file), initial=0))
    begin = 0
    for count, file in zip(plan["runs"], plan["files"], strict=True):
        chunk = {"file": file, "begin": begin, "count": count, "at": places[begin // runs_of_each]}
        yield {**chunk, "build": plan["build"], "plan": plan["inputs"]}
        begin += count


def _inputs_of(
    place: Path, chunk: dict[str, Any]
) -> tuple[list[tuple[int, str]], list[tuple[int, str, int]], str | None]:
    """Return the inputs of a chunk: its scenarios with their numbers, its runs, and the length.

    A run is the number of its scenario, its policy and its seed.
    """
    policies, seeds, length = _inputs_of_all(place, chunk["plan"])
    each = len(policies) * len(seeds)
    first, skipped = divmod(chunk["begin"], each)
    end = first + -(-(skipped + chunk["count"]) // each)
    with (place / SCENARIOS).open("rb") as file:
        file.seek(chunk["at"])
        texts = [(number, json.loads(file.readline())) for number in range(first, end)]
    runs = itertools.product(range(first, end), policies, seeds)
    return texts, [*itertools.islice(runs, skipped, skipped + chunk["count"])], length


@functools.lru_cache(maxsize=4)
def _inputs_of_all(place: Path, plan: str) -> tuple[list[str], list[int], str | None]:
    """Return the policies, the seeds and the length of the sweep with this plan."""
    inputs = json.loads((place / INPUTS).read_bytes())
    return inputs["policies"], inputs["seeds"], inputs["length"]


def _has_plan(place: Path, inputs: str) -> bool:
    """Return True if a folder has the plan of the sweep with these inputs."""
    start = json.dumps({"inputs": inputs})[:-1]
    try:
        with (place / "plan.json").open() as file:
            return file.read(len(start)) == start
    except OSError:
        return False


def _divided(
    texts: Sequence[str], policies: Sequence[str], seeds: Sequence[int], length: str | None
) -> list[int]:
    """Return the number of runs of each chunk, estimated from a few measured runs."""
    measured = _measured(texts, policies, seeds[0], length)
    anyway = sorted(itertools.chain(*measured.values())) or [(0, UNKNOWN)]
    counts: list[int] = []
    count, cost = 0, 0.0
    for scenario, policy in itertools.product(range(len(texts)), policies):
        each = _nearest(measured[policy] or anyway, scenario)
        for _ in seeds:
            count, cost = count + 1, cost + each
            if cost >= CHUNK or count == MAX_RUNS:
                counts.append(count)
                count, cost = 0, 0.0
    return [*counts, count] if count else counts


def _nearest(measured: Sequence[tuple[int, float]], scenario: int) -> float:
    """Return the duration that was measured for the scenario with the nearest number."""
    at = bisect.bisect_left(measured, (scenario, 0.0))
    return min(measured[max(0, at - 1) : at + 1], key=lambda its: abs(its[0] - scenario))[1]


def _measured(
    texts: Sequence[str], policies: Sequence[str], seed: int, length: str | None
) -> dict[str, list[tuple[int, float]]]:
    """Measure runs of evenly chosen scenarios under each policy.

    Returns for each policy the numbers of the scenarios, with the duration of the run in seconds.
    A run that admission refuses is left out.
    """
    measured: dict[str, list[tuple[int, float]]] = {policy: [] for policy in policies}
    step = -(-len(texts) // max(1, MEASURED // len(policies)))
    until = time.perf_counter() + MEASURING
    for scenario, policy in itertools.product(range(0, len(texts), step), policies):
        began = time.perf_counter()
        if began > until:
            break
        try:
            run(Scenario(texts[scenario]), policy=policy, seed=seed, length=length)
        except NotAdmitted:
            continue
        measured[policy].append((scenario, time.perf_counter() - began))
    return measured


def _name(inputs: str, at: int, count: int) -> str:
    """Return the file name of the chunk with number `at` in a sweep and with `count` runs."""
    return hashlib.sha256(f"{inputs} {at} {count}".encode()).hexdigest()[:24] + ".parquet"


@functools.cache
def _build() -> str:
    """Return the version and a hash of the module. The hash is the same only for the same build."""
    digest = hashlib.sha256()
    for file in (_slackline.__file__, __file__):
        digest.update(Path(file).read_bytes())
    return f"{__version__}-{digest.hexdigest()[:16]}"


def _check_workers(client: Any) -> None:
    """Refuse workers whose results could differ, and warn about a connection without TLS."""
    answers = client.run(_build, on_error="return")
    # A worker that is lost meanwhile cannot give results.
    unlike = [
        f"{at}: {its!r}"
        for at, its in answers.items()
        if its != _build() and not isinstance(its, OSError)
    ]
    if unlike:
        raise SlacklineError(
            f"{len(unlike)} of {len(answers)} workers have another build of Slackline than "
            f"{_build()}, or none: {', '.join(unlike[:3])}"
        )
    address = str(client.scheduler.address)
    is_local = "127.0.0.1" in address or address.startswith("inproc")
    if not is_local and not address.startswith("tls://"):
        import warnings

        warnings.warn(
            f"{address} has no TLS: everybody on its network can run code on the workers",
            stacklevel=3,
        )
