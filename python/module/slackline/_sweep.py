"""Sweeps: many runs in chunks, on this machine or on a Dask cluster, as Parquet files."""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import json
import operator
import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import _slackline
from ._errors import NotAdmitted, ScenarioError, SlacklineError
from ._slackline import Scenario, __version__, run, run_rows

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

#: A run: the number of its scenario, its policy and its seed.
SingleRun = tuple[int, str, int]

#: All runs of some scenarios under some policies with some seeds: numbers, policies and seeds.
Group = tuple[Sequence[int], Sequence[str], Sequence[int]]


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
    file, named by a hash of its inputs. If an interrupted sweep is started again, it makes only the
    missing chunks. `load` reads the result. Needs pyarrow.

    A run that admission refuses has one row, whose column `outcome` is "refused". All other rows
    have the outcome "done". Scenarios that name files are refused.

    With `client`, a `distributed.Client`, the chunks run on its workers, which must see the folder
    under the same path. A chunk whose worker dies is run again. Workers with another build of
    Slackline are refused.
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
    chunks = _chunks(place, texts, policies, chosen, length)
    # A listing of the folder is current on a network file system too, unlike a repeated look-up of
    # a file that was missing before.
    present = set(os.listdir(place))
    missing = [chunk for chunk in chunks if _name(chunk) not in present]
    path = str(place.absolute())
    if client is None:
        for chunk in missing:
            run_chunk(path, chunk)
        return place
    futures = client.map(run_chunk, [path] * len(missing), missing, retries=3, pure=False)
    client.gather(futures)
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
    parsed = {number: Scenario(text) for number, text in chunk["texts"].items()}
    tables = [
        table
        for group in _groups(chunk["runs"])
        for table in _tables(group, parsed, chunk["length"])
    ]
    table = pyarrow.concat_tables(tables, promote_options="default")
    path = place / _name(chunk)
    # The final name appears only when the file is complete, even if the worker is killed.
    part = path.with_suffix(f".{os.getpid()}.part")
    pyarrow.parquet.write_table(table, part)
    part.replace(path)
    return int(table.num_rows)


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


def _groups(runs: Iterable[SingleRun]) -> list[Group]:
    """Divide adjacent runs into groups for `run_rows`, in the same order."""
    pairs = [
        (scenario, policy, [seed for _, _, seed in of_pair])
        for (scenario, policy), of_pair in itertools.groupby(runs, key=lambda run: run[:2])
    ]
    cases = [
        (scenario, [policy for _, policy, _ in of_case], seeds)
        for (scenario, seeds), of_case in itertools.groupby(pairs, key=lambda pair: pair[::2])
    ]
    return [
        ([scenario for scenario, _, _ in of_group], policies, seeds)
        for (policies, seeds), of_group in itertools.groupby(cases, key=lambda case: case[1:])
    ]


def _tables(group: Group, parsed: dict[int, Scenario], length: str | None) -> Iterator[Any]:
    """Make the runs of a group, and yield tables of their rows in the order of the runs."""
    numbers, policies, seeds = group
    try:
        found = run_rows([parsed[number] for number in numbers], policies, seeds, length=length)
    except (NotAdmitted, ScenarioError) as error:
        runs = list(itertools.product(numbers, policies, seeds))
        if len(runs) > 1:
            # One run cannot be made. The other runs of the group still give rows.
            for number, policy, seed in runs:
                yield from _tables(([number], [policy], [seed]), parsed, length)
            return
        if isinstance(error, ScenarioError):
            error.add_note(f"in scenario {numbers[0]} of the sweep, under {policies[0]}")
            raise
        yield _refused(runs[0], parsed)
        return
    yield _done(found, numbers, parsed)


def _done(found: Any, numbers: Sequence[int], parsed: dict[int, Scenario]) -> Any:
    """Return a result of `run_rows` with the columns of a sweep."""
    import pyarrow

    table = pyarrow.table(found)
    scenarios = [numbers[index] for index in table["scenario"].to_pylist()]
    titles = [parsed[number].title for number in scenarios]
    table = table.set_column(0, "scenario", pyarrow.array(scenarios, pyarrow.int64()))
    table = table.add_column(1, "title", pyarrow.array(titles, pyarrow.string()))
    outcomes = pyarrow.array(["done"] * len(scenarios), pyarrow.string())
    return table.add_column(4, "outcome", outcomes)


def _refused(refused: SingleRun, parsed: dict[int, Scenario]) -> Any:
    """Return the row of a run that admission refused."""
    import pyarrow

    scenario, policy, seed = refused
    title = parsed[scenario].title
    row = {"scenario": scenario, "title": title, "policy": policy, "seed": seed}
    texts = {"title", "policy", "outcome"}
    fields = [
        (name, pyarrow.string() if name in texts else pyarrow.int64()) for name in [*row, "outcome"]
    ]
    schema = pyarrow.schema(fields)
    return pyarrow.Table.from_pylist([{**row, "outcome": "refused"}], schema=schema)


def _chunks(
    place: Path,
    texts: Sequence[str],
    policies: Sequence[str],
    seeds: Sequence[int],
    length: str | None,
) -> list[dict[str, Any]]:
    """Return the chunks of a sweep, divided by the folder's plan or by a new plan."""
    inputs = json.dumps([texts, [*policies], seeds, length])
    digest = hashlib.sha256(inputs.encode()).hexdigest()
    path = place / "plan.json"
    plan = json.loads(path.read_text()) if path.exists() else None
    if plan is not None and plan["inputs"] != digest:
        raise SlacklineError(f"{place} has another sweep: choose an empty folder")
    if plan is not None and plan["build"] != _build():
        raise SlacklineError(
            f"{place} has results of build {plan['build']} of Slackline, and this is build "
            f"{_build()}: choose an empty folder"
        )
    counts = plan["runs"] if plan is not None else _divided(texts, policies, seeds, length)
    runs: Iterator[SingleRun] = itertools.product(range(len(texts)), policies, seeds)
    chunks: list[dict[str, Any]] = []
    for count in counts:
        of_chunk = list(itertools.islice(runs, count))
        texts_of = {number: texts[number] for number, _, _ in of_chunk}
        chunk = {"runs": of_chunk, "texts": texts_of, "length": length}
        chunks.append({**chunk, "build": _build(), "plan": digest})
    if plan is None:
        files = [_name(chunk) for chunk in chunks]
        part = path.with_suffix(".part")
        # `_has_plan` expects that `inputs` is the first key.
        plan = {"inputs": digest, "build": _build(), "runs": counts, "files": files}
        part.write_text(json.dumps(plan))
        part.replace(path)
    return chunks


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


def _name(chunk: dict[str, Any]) -> str:
    text = json.dumps(chunk, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24] + ".parquet"


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
