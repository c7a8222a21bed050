"""Tests of sweeps: resumed after an interruption, and on a Dask cluster that loses a worker."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import slackline
from slackline import _slackline, _sweep

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


EDF = """title = "two guests"
length = "100ms"
policy = { name = "edf" }
[[domain]]
name = "web"
work = { kind = "spin" }
share.edf = { slice = "SLICE", period = "10ms" }
[[domain]]
name = "db"
work = { kind = "spin" }
share.edf = { slice = "4ms", period = "10ms" }
"""


class StandIn:
    """Client with one worker. The worker is this process, or gives the answer `answer`."""

    class scheduler:
        address = "inproc://here"

    def __init__(self, answer: object = None, folder: Path | None = None, threads: int = 1) -> None:
        self.answer = answer
        self.folder = folder
        self.threads = ThreadPoolExecutor(threads)
        self.count = threads
        #: Number of futures that were submitted and not released, and its maximum so far.
        self.held = 0
        self.most_held = 0
        self.submitted = 0

    def run(self, function: Any, on_error: str) -> dict[str, object]:
        assert on_error == "return"
        return {"tcp://127.0.0.1:1": self.answer or function()}

    def nthreads(self) -> dict[str, int]:
        return {"tcp://127.0.0.1:1": self.count}

    def submit(self, function: Any, folder: str, chunk: Any, **options: object) -> StandInFuture:
        self.held += 1
        self.most_held = max(self.held, self.most_held)
        self.submitted += 1
        future = self.threads.submit(function, str(self.folder or folder), chunk)
        return StandInFuture(self, str(self.submitted), future)


class StandInFuture:
    """Future of a chunk that a thread of this process runs."""

    def __init__(self, client: StandIn, key: str, future: Future[int]) -> None:
        self.client = client
        self.key = key
        self.future = future

    @property
    def status(self) -> str:
        return "error" if self.future.exception() else "finished"

    def add_done_callback(self, call: Any) -> None:
        self.future.add_done_callback(lambda _: call(self))

    def result(self) -> int:
        return self.future.result()

    def release(self) -> None:
        self.client.held -= 1
        self.future.cancel()


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
    client = StandIn("0.0.9")
    with pytest.raises(slackline.SlacklineError, match=r"another build of Slackline than 0\.1\.0"):
        slackline.sweep(scenarios(), ["credit"], [1], tmp_path, client=client)


def test_dask_worker_without_the_module_is_refused(tmp_path: Path) -> None:
    client = StandIn(ModuleNotFoundError("No module named 'slackline'"))
    with pytest.raises(slackline.SlacklineError, match="or none: tcp.*No module named"):
        slackline.sweep(scenarios(), ["credit"], [1], tmp_path, client=client)
    # A worker that died meanwhile does not stop the sweep.
    slackline.sweep(scenarios(), ["credit"], [1], tmp_path, client=StandIn(OSError("closed")))


def test_chunks_and_folders_of_another_build_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (scenarios(), ["credit"], [1], tmp_path)
    assert _sweep._build().startswith(f"{slackline.__version__}-")
    slackline.sweep(*arguments)
    inputs = ([one.text for one in scenarios()], ["credit"], [1], None)
    [chunk] = _sweep._chunks(tmp_path, _sweep._plan(tmp_path, *inputs), 1)
    monkeypatch.setattr(_sweep, "_build", lambda: "0.1.0-0123456789abcdef")
    with pytest.raises(slackline.SlacklineError, match="has build 0.1.0-0123456789abcdef"):
        _sweep.run_chunk(str(tmp_path), chunk)
    with pytest.raises(slackline.SlacklineError, match="has results of build .*: choose an empty"):
        slackline.sweep(*arguments)


def test_sweep_puts_many_scenarios_into_few_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[object] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        measured.append(arguments)
        return slackline.run(*arguments, **options)

    monkeypatch.setattr(_sweep, "run", counted)
    many = [slackline.Scenario(TEXT.replace("512", str(64 + weight))) for weight in range(200)]
    slackline.sweep(many, ["credit", "round-robin"], [7], tmp_path, length="20ms")
    assert 1 <= len(measured) <= 20
    assert len(list(tmp_path.glob("*.parquet"))) <= 40
    rows = slackline.load(tmp_path).to_pylist()
    assert len(rows) == 200 * 2 * 2
    for at, row in enumerate(rows):
        scenario, policy = at // 4, ("credit", "round-robin")[at // 2 % 2]
        assert (row["scenario"], row["policy"], row["seed"]) == (scenario, policy, 7)
        if at % 2 == 0 and scenario % 20 == 0:
            run = slackline.run(many[scenario], policy=policy, seed=7, length="20ms")
            of_run = {key: value for key, value in row.items() if key in run.vcpus[0]}
            assert of_run == run.vcpus[0]


def test_size_of_chunk_arguments_does_not_depend_on_the_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sweep, "CHUNK", 1000.0)
    sizes: list[int] = []

    class Measured(StandIn):
        def submit(self, function: Any, folder: str, chunk: Any, **options: object) -> StandInFuture:
            sizes.append(len(pickle.dumps(chunk)))
            return super().submit(function, folder, chunk, **options)

    grid = [slackline.Scenario(EDF.replace("SLICE", "3ms"))] * 50
    slackline.sweep(grid, ["edf"], range(1, 11), tmp_path, client=Measured())
    assert len(sizes) == 1 and sizes[0] < 500
    assert len(slackline.load(tmp_path)) == 50 * 10 * 2


def test_chunk_with_refused_runs_is_made_by_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[tuple[int, str, int]]] = []

    def counted(texts: Any, runs: Any, **options: Any) -> Any:
        calls.append(runs)
        return _slackline._sweep_rows(texts, runs, **options)

    monkeypatch.setattr(_sweep, "_sweep_rows", counted)
    slices = ["3ms", "8ms"] * 50
    grid = [slackline.Scenario(EDF.replace("SLICE", slice)) for slice in slices]
    slackline.sweep(grid, ["edf"], [1, 2], tmp_path)
    assert len(calls) == len(list(tmp_path.glob("*.parquet")))
    expected = [(scenario, "edf", seed) for scenario in range(100) for seed in (1, 2)]
    assert list(itertools.chain(*calls)) == expected
    rows = slackline.load(tmp_path).to_pylist()
    assert sum(row["outcome"] == "refused" for row in rows) == 100


def test_long_sweep_has_few_submitted_chunks_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sweep, "CHUNK", 0.0)
    client = StandIn(threads=2)
    slackline.sweep(scenarios(), ["credit"], range(1, 51), tmp_path, client=client)
    assert (client.submitted, client.held) == (100, 0)
    # The two threads have work at all times.
    assert 4 <= client.most_held <= 6
    assert len(slackline.load(tmp_path)) == 200
    # After a failed chunk, no other chunk is submitted, and the futures are released.
    failing = StandIn(folder=tmp_path / "absent", threads=2)
    with pytest.raises(slackline.SlacklineError, match="does not see this sweep"):
        slackline.sweep(scenarios(), ["credit"], range(1, 51), tmp_path / "new", client=failing)
    assert failing.submitted <= 7 and failing.held == 0


def test_error_of_a_run_names_its_scenario_and_policy() -> None:
    with pytest.raises(slackline.ScenarioError) as raised:
        _slackline._sweep_rows([(7, TEXT)], [(7, "credit", 1), (7, "nonesuch", 1)])
    assert raised.value.__notes__ == ["in scenario 7 of the sweep, under policy nonesuch"]
    with pytest.raises(slackline.SlacklineError, match="lacks the text of scenario 8"):
        _slackline._sweep_rows([(7, TEXT)], [(8, "credit", 1)])


def test_refused_run_has_a_row_and_other_runs_are_made(tmp_path: Path) -> None:
    grid = [slackline.Scenario(EDF.replace("SLICE", slice)) for slice in ("3ms", "8ms", "4ms")]
    slackline.sweep(grid, ["edf"], [1, 2], tmp_path)
    rows = slackline.load(tmp_path).to_pylist()
    found = [(row["scenario"], row["seed"], row["name"], row["outcome"]) for row in rows]
    expected: list[tuple[int, int, str | None, str]] = []
    for scenario, seed in ((0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)):
        if scenario == 1:
            expected.append((scenario, seed, None, "refused"))
        else:
            expected += [(scenario, seed, name, "done") for name in ("web", "db")]
    assert found == expected
    files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.parquet")}
    slackline.sweep(grid, ["edf"], [1, 2], tmp_path)
    assert files == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.parquet")}
    # A sweep whose first chunk has only refused runs gives a table too.
    slackline.sweep(grid[1:2], ["edf"], [1], tmp_path / "refused")
    [row] = slackline.load(tmp_path / "refused").to_pylist()
    assert (row["title"], row["outcome"]) == ("two guests", "refused")


def test_sweep_without_inputs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(slackline.SlacklineError, match="without a seed"):
        slackline.sweep(scenarios(), ["credit"], [], tmp_path)
    with pytest.raises(slackline.SlacklineError, match="without a scenario"):
        slackline.sweep([], ["credit"], [1], tmp_path)
    with pytest.raises(TypeError, match="policies must be a list"):
        slackline.sweep(scenarios(), "credit", [1], tmp_path)


def test_seeds_of_a_sweep_may_be_integers_of_other_libraries(tmp_path: Path) -> None:
    class Integer:
        def __index__(self) -> int:
            return 3

    slackline.sweep(scenarios(), ["credit"], [Integer()], tmp_path)  # type: ignore[list-item]
    assert set(slackline.load(tmp_path)["seed"].to_pylist()) == {3}


def test_scenario_that_names_files_is_not_swept(tmp_path: Path) -> None:
    (tmp_path / "web.jobs").write_text("ready_ns,work_ns\n0,3000000\n5000000,2000000\n")
    work = 'kind = "jobs", file = "web.jobs"'
    text = EDF.replace("SLICE", "3ms").replace('kind = "spin"', work, 1)
    (tmp_path / "host.toml").write_text(text)
    scenario = slackline.Scenario.read(tmp_path / "host.toml")
    assert scenario.names_files
    assert len(slackline.run(scenario).vcpus) == 2
    swept = [*scenarios()[:1], scenario]
    with pytest.raises(slackline.SlacklineError, match="1, `two guests`: it names") as raised:
        slackline.sweep(swept, ["edf"], [1], tmp_path / "out")
    assert raised.value.hint and "import_workload" in raised.value.hint
    (tmp_path / "spin.toml").write_text(TEXT)
    assert not slackline.Scenario.read(tmp_path / "spin.toml").names_files


def test_worker_that_does_not_see_the_folder_is_named(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    arguments = (scenarios(), ["credit"], [1], here)
    with pytest.raises(slackline.SlacklineError, match="does not see this sweep in .*/there"):
        slackline.sweep(*arguments, client=StandIn(folder=there))
    # Another sweep in that folder is not taken for this sweep.
    slackline.sweep(scenarios(), ["credit"], [2], there)
    with pytest.raises(slackline.SlacklineError, match="does not see this sweep in .*/there"):
        slackline.sweep(*arguments, client=StandIn(folder=there))


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start `dask` in a process group of its own, and end the group."""
    program = Path(sys.executable).parent / "dask"
    process = subprocess.Popen([program, *words], start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_documented_cluster_with_tls_survives_a_killed_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed")
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    monkeypatch.setattr(_sweep, "CHUNK", 0.0)
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost".split()
    subprocess.run([*words, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    tls = ["--tls-ca-file", certificate, "--tls-cert", certificate, "--tls-key", key]
    security = distributed.Security(
        require_encryption=True,
        tls_ca_file=certificate,
        tls_client_cert=certificate,
        tls_client_key=key,
    )
    at = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    file = str(tmp_path / "scheduler.json")
    there = tmp_path / "there"
    slackline.sweep(scenarios(), ["credit"], range(1, 30), tmp_path / "here", length="20s")
    with started("scheduler", "--protocol", "tls", *tls, *at, "--scheduler-file", file):
        workers = ["--nworkers", "2", "--nthreads", "1", "--no-dashboard"]
        with (
            started("worker", "--scheduler-file", file, *tls, *workers),
            distributed.Client(scheduler_file=file, security=security, timeout=30) as client,
        ):
            assert str(client.scheduler.address).startswith("tls://")
            client.wait_for_workers(2, timeout=60)
            victim = next(iter(client.run(os.getpid).values()))

            def kill_in_the_middle() -> None:
                while len(list(there.glob("*.parquet"))) < 3:
                    time.sleep(0.001)
                os.kill(victim, signal.SIGKILL)

            killer = threading.Thread(target=kill_in_the_middle)
            killer.start()
            slackline.sweep(
                scenarios(), ["credit"], range(1, 30), there, length="20s", client=client
            )
            killer.join()
    assert slackline.load(there).equals(slackline.load(tmp_path / "here"))
