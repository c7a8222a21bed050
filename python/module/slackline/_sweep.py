"""Sweeps: many runs in chunks, on this machine or on a Dask cluster, as Parquet files."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ._errors import SlacklineError
from ._slackline import Scenario, __version__, run

#: Approximate duration of the runs of a chunk, in seconds.
CHUNK = 1.0


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

    With `client`, a `distributed.Client`, the chunks run on its workers, which must see the folder
    under the same path. A chunk whose worker dies is run again. Workers with another version of
    Slackline are refused.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    texts = [scenario.text for scenario in scenarios]
    inputs = [texts, list(policies), list(seeds), length, __version__]
    chunks = _plan(place, inputs, scenarios)
    missing = [chunk for chunk in chunks if not (place / _name(chunk)).exists()]
    if client is None:
        for chunk in missing:
            run_chunk(str(place), chunk)
        return place
    _check_workers(client)
    futures = client.map(run_chunk, [str(place)] * len(missing), missing, retries=3, pure=False)
    client.gather(futures)
    return place


def load(folder: str | os.PathLike[str]) -> Any:
    """Return the metrics of a sweep as one `pyarrow.Table`, in the order of its inputs."""
    import pyarrow
    import pyarrow.parquet

    place = Path(folder)
    plan = json.loads((place / "plan.json").read_text())
    paths = [place / _name(chunk) for chunk in plan["chunks"]]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise SlacklineError(
            f"{len(missing)} of {len(paths)} chunks are missing in {place}: run `sweep` again"
        )
    return pyarrow.concat_tables(pyarrow.parquet.read_table(path) for path in paths)


def run_chunk(folder: str, chunk: dict[str, Any]) -> int:
    """Run the scenarios of a chunk, write its file, and return the number of rows."""
    import pyarrow
    import pyarrow.parquet

    path = Path(folder) / _name(chunk)
    rows: list[dict[str, Any]] = []
    for scenario, policy, seed in chunk["runs"]:
        parsed = Scenario(chunk["texts"][str(scenario)])
        result = run(parsed, policy=policy, seed=seed, length=chunk["length"])
        of_run = {"scenario": scenario, "title": parsed.title, "policy": policy, "seed": seed}
        rows += [{**of_run, **vcpu} for vcpu in result.vcpus]
    schema = _schema(rows[0])
    table = pyarrow.Table.from_pylist(rows, schema=schema)
    # The final name appears only when the file is complete, even if the worker is killed.
    part = path.with_suffix(f".{os.getpid()}.part")
    pyarrow.parquet.write_table(table, part)
    part.replace(path)
    return len(rows)


def _schema(row: dict[str, Any]) -> Any:
    """Return a schema that is the same for all chunks, even if some values are unknown."""
    import pyarrow

    texts = {"title", "policy", "name", "vcpu", "domain"}

    def kind(name: str, value: Any) -> Any:
        if name in texts or isinstance(value, str):
            return pyarrow.string()
        return pyarrow.bool_() if isinstance(value, bool) else pyarrow.int64()

    return pyarrow.schema([(name, kind(name, value)) for name, value in row.items()])


def _plan(place: Path, inputs: list[Any], scenarios: Sequence[Scenario]) -> list[dict[str, Any]]:
    """Return the chunks of a sweep, from the folder's plan or from a new plan."""
    digest = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()
    path = place / "plan.json"
    if path.exists():
        plan = json.loads(path.read_text())
        if plan["inputs"] != digest:
            raise SlacklineError(f"{place} has another sweep: choose an empty folder")
        known: list[dict[str, Any]] = plan["chunks"]
        return known
    texts, policies, seeds, length, version = inputs
    chunks: list[dict[str, Any]] = []
    for number, scenario in enumerate(scenarios):
        for policy in policies:
            began = time.perf_counter()
            run(scenario, policy=policy, seed=seeds[0], length=length)
            each = max(1, int(CHUNK / max(time.perf_counter() - began, 1e-6)))
            for at in range(0, len(seeds), each):
                runs = [[number, policy, seed] for seed in seeds[at : at + each]]
                texts_of = {str(number): texts[number]}
                chunk = {"runs": runs, "texts": texts_of, "length": length, "version": version}
                chunks.append(chunk)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"inputs": digest, "chunks": chunks}))
    part.replace(path)
    return chunks


def _name(chunk: dict[str, Any]) -> str:
    text = json.dumps(chunk, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24] + ".parquet"


def _version() -> str:
    return __version__


def _check_workers(client: Any) -> None:
    """Refuse workers whose results could differ, and warn about a connection without TLS."""
    unlike = {at: its for at, its in client.run(_version, on_error="ignore").items() if its != __version__}
    if unlike:
        raise SlacklineError(f"workers have another version than {__version__}: {unlike}")
    address = str(client.scheduler.address)
    is_local = "127.0.0.1" in address or address.startswith("inproc")
    if not is_local and not address.startswith("tls://"):
        import warnings

        warnings.warn(
            f"{address} has no TLS: everybody on its network can run code on the workers",
            stacklevel=3,
        )
