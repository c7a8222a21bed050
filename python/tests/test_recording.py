"""Tests of recordings, and of workloads of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import slackline

ROOT = Path(__file__).parent.parent.parent
WORKLOADS = ROOT / "edge/workload/tests/fixtures"


@pytest.fixture
def recording(tmp_path: Path) -> str:
    """Return a trace of four guests under edf."""
    path = tmp_path / "it.trace"
    scenario = slackline.Scenario.read(str(ROOT / "scenarios/schedulers.toml"))
    slackline.run(scenario, policy="edf", length="10s", save=str(path))
    return str(path)


def test_replay_of_a_saved_run_repeats_all_decisions(recording: str) -> None:
    events, decisions = slackline.replay(recording)
    assert events > 1_000 and decisions > 1_000


def test_whatif_predicts_that_a_smaller_slice_lowers_the_share(recording: str) -> None:
    check = slackline.whatif(recording)
    assert check["gate"]["passes"] and check["vcpus"] == []
    answer = slackline.whatif(recording, set={"light": {"slice": "500us"}})
    light = next(row for row in answer["vcpus"] if row["name"] == "light")
    assert answer["gate"]["forms"] == ["open", "closed"]
    for form in ("open", "closed"):
        assert light["then"][form]["share_ppm"] < light["now"]["share_ppm"]
        assert light["then"][form]["slice_ns"] == 500_000
    assert "light" in [loss["name"] for loss in answer["losses"]]


def test_whatif_adds_and_removes_vms(recording: str) -> None:
    answer = slackline.whatif(recording, add={"twin": "clock"}, remove=["server"])
    rows = {row["name"]: row for row in answer["vcpus"]}
    assert rows["twin"]["now"] is None and rows["twin"]["then"]["open"]["share_ppm"] > 0
    assert rows["server"]["then"] == {}


def test_whatif_refuses_unknown_vms_and_damaged_files(recording: str, tmp_path: Path) -> None:
    with pytest.raises(slackline.SlacklineError, match="cannot find `web` in the recording"):
        slackline.whatif(recording, set={"web": {"slice": "1ms"}})
    with pytest.raises(OSError, match="cannot read .*missing.trace"):
        slackline.whatif(str(tmp_path / "missing.trace"))
    bad = tmp_path / "bad.trace"
    bad.write_bytes(b"no trace at all")
    with pytest.raises(slackline.SlacklineError, match="bad.trace"):
        slackline.replay(str(bad))
    with pytest.raises(slackline.SlacklineError, match="bad.trace"):
        slackline.whatif(str(bad))
    scenario = slackline.Scenario.read(str(ROOT / "scenarios/schedulers.toml"))
    with pytest.raises(OSError, match="cannot write /no/such/it.trace"):
        slackline.run(scenario, length="2s", save="/no/such/it.trace")


def test_imported_series_gives_each_vm_its_mean_use() -> None:
    files = [str(WORKLOADS / "planetlab.txt")]
    for bursts in ("even", "random", "block"):
        scenario, assumptions = slackline.import_workload("planetlab", files, bursts=bursts)
        assert any("300 s" in text for text in assumptions)
        [vcpu] = slackline.run(scenario, policy="credit").vcpus
        # The means of four intervals are 12, 0, 100 and 7 %.
        assert abs(vcpu["delivered_ppm"] - 297_500) < 1_000, bursts
    with pytest.raises(slackline.SlacklineError, match="no file is given"):
        slackline.import_workload("planetlab", [])


def test_imported_series_can_be_swept(tmp_path: Path) -> None:
    scenario, _ = slackline.import_workload("planetlab", [WORKLOADS / "planetlab.txt"])
    again = slackline.Scenario(scenario.text)
    slackline.sweep([scenario, again], ["credit", "fair"], range(1, 3), str(tmp_path / "out"))
    assert slackline.load(str(tmp_path / "out")).num_rows == 8


def test_deeply_nested_file_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    with pytest.raises(slackline.SlacklineError, match="nested deeper than 64"):
        slackline.import_workload("rt-app", [deep])


def test_imported_task_sets_run_under_their_reservations() -> None:
    scenario, _ = slackline.import_workload("simso", [str(WORKLOADS / "simso.xml")])
    assert scenario.vcpus == ["T1", "T2", "T3"]
    assert sum(vcpu["jobs_late"] for vcpu in slackline.run(scenario).vcpus) == 0
    scenario, _ = slackline.import_workload("rt-app", [str(WORKLOADS / "rt-app.json")])
    assert scenario.vcpus == ["control", "worker-0", "worker-1"]


def test_import_refuses_damaged_files_with_a_hint(tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_text("12\nx\n")
    with pytest.raises(slackline.SlacklineError, match="bad.txt:2: `x` is not") as raised:
        slackline.import_workload("planetlab", [str(bad)])
    assert raised.value.hint == "a PlanetLab file has one number on each line"
    with pytest.raises(slackline.SlacklineError, match="there is no kind `csv`; there are"):
        slackline.import_workload("csv", [str(bad)])


def test_eva_and_random_task_sets_are_simulated_and_fitted() -> None:
    file = WORKLOADS / "eva.txt"
    scenario, assumptions = slackline.import_workload("eva", [file])
    assert scenario.vcpus == ["task0", "task1", "task2"]
    assert "times are in ms; the file does not state the unit" in assumptions
    assert sum(vcpu["jobs_late"] for vcpu in slackline.run(scenario).vcpus) == 0
    tasks, _ = slackline.import_task_set("eva", [file], unit="us")
    assert [task.work_ns for task in tasks.tasks] == [10_000, 1_000, 2_500]
    draw = {"tasks": 4, "utilisation": "60%", "periods": ("10ms", "100ms"), "seed": 3}
    drawn, _ = slackline.import_task_set("uunifast", **draw)  # type: ignore[arg-type]
    again, _ = slackline.import_task_set("uunifast", **draw)  # type: ignore[arg-type]
    rows = [(task.work_ns, task.period_ns) for task in drawn.tasks]
    assert rows == [(task.work_ns, task.period_ns) for task in again.tasks]
    assert 598_000 <= drawn.utilisation_ppm <= 600_400 and len(drawn) == 4
    assert slackline.fit(drawn).witnesses[0] == "proof"
    many, _ = slackline.import_workload("uunifast", tasks=12, utilisation="250%")
    assert len(many.vcpus) == 12 and many.cpus == 3


@pytest.mark.parametrize(
    ("arguments", "exception", "message"),
    [
        ({"tasks": 0}, slackline.SlacklineError, "0 tasks; 1 to 200 are possible"),
        ({"tasks": -1}, OverflowError, "out of range"),
        ({"tasks": 2.5}, TypeError, "tasks"),
        ({"utilisation": "nan"}, slackline.SlacklineError, "utilisation `nan`"),
        ({"utilisation": "501%"}, slackline.SlacklineError, "utilisation 5.01cpu of 5 tasks"),
        ({"utilisation": 0.7}, TypeError, "utilisation"),
        ({"periods": ("1s", "10ms")}, slackline.SlacklineError, "periods 1s to 10ms"),
        ({"periods": ("1ns", "10ms")}, slackline.SlacklineError, "periods 1ns to 10ms"),
        ({"seed": -1}, OverflowError, "negative"),
        ({"unit": "years"}, slackline.SlacklineError, "there is no unit `years`"),
        ({"files": ["/no/such/file"]}, OSError, "cannot read /no/such/file"),
        ({"files": [WORKLOADS / "eva.txt"]}, slackline.SlacklineError, "1 file for `uunifast`"),
    ],
)
def test_wrong_argument_of_import_is_refused(
    arguments: dict[str, Any], exception: type[Exception], message: str
) -> None:
    for convert in (slackline.import_workload, slackline.import_task_set):
        with pytest.raises(exception, match=message) as raised:
            convert("uunifast", **arguments)
        assert not isinstance(raised.value, slackline.SlacklineError) or raised.value.hint
    with pytest.raises(slackline.SlacklineError, match="cpus 0: must be from 1 to 256"):
        slackline.import_workload("uunifast", cpus=0)


def test_file_that_never_ends_is_refused() -> None:
    with pytest.raises(slackline.SlacklineError, match="it has more than 268435456 bytes"):
        slackline.Scenario.read("/dev/zero")
    with pytest.raises(slackline.SlacklineError, match="it has more than 268435456 bytes"):
        slackline.TaskSet.read("/dev/zero")
    with pytest.raises(slackline.SlacklineError, match="it has more than 268435456 bytes"):
        slackline.fit("/dev/zero")
    with pytest.raises(slackline.SlacklineError, match="it has more than 268435456 bytes"):
        slackline.import_workload("planetlab", ["/dev/zero"])
    with pytest.raises(OSError, match="cannot read /dev"):
        slackline.fit("/dev")
