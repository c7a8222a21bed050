"""Tests of fit, room, check and alert."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import slackline

ROOT = Path(__file__).parent.parent.parent
PROGRAM = Path(os.environ.get("SLACKLINE_PROGRAM", ROOT / "target/debug/slackline"))

TASKS = """title = "engine control"
scheduler = "SCHEDULER"
[[task]]
name = "control"
work = "1ms"
period = "10ms"
[[task]]
name = "sensor"
work = "500us"
period = "20ms"
deadline = "12ms"
[[task]]
name = "log"
work = "8ms"
period = "100ms"
"""

HOST = """title = "web and batch"
length = "2s"
policy = { name = "edf" }
[[domain]]
name = "web"
work = { kind = "periodic", period = "20ms", work = "uniform 1ms 4ms" }
share.edf = { slice = "5ms", period = "10ms", exact = true }
[[domain]]
name = "batch"
work = { kind = "spin" }
share.edf = { slice = "3ms", period = "10ms" }
"""

CLAIM = """[[claim]]
that = "jobs late of web"
is = "at most 0"
"""


def tasks(scheduler: str = "edf") -> str:
    return TASKS.replace("SCHEDULER", scheduler)


def as_dict(value: Any) -> Any:
    """Convert an object of the module to the form of the command line's JSON."""
    if isinstance(value, list):
        return [as_dict(one) for one in value]
    if isinstance(value, slackline.Scenario):
        return value.text
    if not type(value).__module__.startswith("slackline"):
        return value
    names = [name for name in dir(value) if not name.startswith("_")]
    return {name: as_dict(getattr(value, name)) for name in names}


def test_fit_of_tasks_has_a_proof_and_a_run_that_misses_a_deadline() -> None:
    for scheduler in ("edf", "fixed"):
        answer = slackline.fit(slackline.TaskSet(tasks(scheduler)), period="5ms")
        assert answer.witnesses == ["proof", "trace"] and answer.scheduler == scheduler
        assert answer.proof is not None and answer.trace is not None
        assert answer.reservation.slice_ns - answer.trace.reservation.slice_ns == 1_000
        assert answer.trace.deadline_ns is not None
        # The witness is a scenario: its run misses the deadline again.
        run = slackline.run(answer.trace.scenario)
        late = run.metric("jobs late of vm")
        assert late is not None and late > 0
    by_edf = slackline.fit(slackline.TaskSet(tasks()), period="5ms")
    assert by_edf.proof is not None and by_edf.reservation.slice_ns == 1_500_000
    assert all(point.supplied_within_ns <= point.interval_ns for point in by_edf.proof.points)
    assert [task.name for task in by_edf.tasks] == ["control", "sensor", "log"]


def test_fit_equals_the_json_of_the_command_line(tmp_path: Path) -> None:
    if not PROGRAM.exists():
        pytest.skip("needs a built program")
    file = tmp_path / "tasks.toml"
    for scheduler, options, arguments in (
        ("edf", ["--period", "5ms"], {"period": "5ms"}),
        ("fixed", ["--share", "40%"], {"share": "40%"}),
        ("edf", ["--most-vms"], {"most_vms": True}),
    ):
        file.write_text(tasks(scheduler))
        words = [str(PROGRAM), "fit", str(file), "--json", *options]
        expected = json.loads(subprocess.check_output(words))
        answer = as_dict(slackline.fit(file, **arguments))
        expected_proof, proof = expected.pop("proof"), answer["proof"]
        assert {name: proof[name] for name in expected_proof} == expected_proof
        expected_trace, trace = expected.pop("trace"), answer["trace"]
        assert {name: trace[name] for name in expected_trace} == expected_trace
        for row, period in zip(expected.pop("periods"), answer["periods"], strict=True):
            fits = period["reservation"] or {"slice_ns": None, "share_ppm": None}
            assert row["slice_ns"] == fits["slice_ns"] and row["share_ppm"] == fits["share_ppm"]
            assert row["vms_per_cpu"] == period["vms_per_cpu"]
        assert {name: answer[name] for name in expected} == expected


def test_reservation_for_a_delay_never_waits_longer_than_the_delay(tmp_path: Path) -> None:
    saved = tmp_path / "miss.trace"
    answer = slackline.fit(share="20%", delay="15ms", save=saved)
    assert answer.reservation.period_ns == 9_375_000
    assert 2 * (answer.reservation.period_ns - answer.reservation.slice_ns) <= 15_000_000
    events, decisions = slackline.replay(saved)
    assert events > 0 and decisions > 0
    with pytest.raises(TypeError, match="both `share` and `delay`"):
        slackline.fit(delay="15ms")
    with pytest.raises(TypeError, match="cannot use `step` with `delay`"):
        slackline.fit(share="20%", delay="15ms", step="1us")
    with pytest.raises(slackline.SlacklineError, match="the reservation would be below 1us"):
        slackline.fit(share="20%", delay="1us")
    with pytest.raises(slackline.SlacklineError, match="is not below one hour"):
        slackline.fit(share="20%", delay="100000d")
    with pytest.raises(slackline.SlacklineError, match="is never without CPU time"):
        slackline.fit(share="100%", delay="15ms")


def test_fit_of_a_scenario_has_seeds_and_a_run_that_breaks_a_claim() -> None:
    scenario = slackline.Scenario(HOST + CLAIM)
    answer = slackline.fit(scenario, vm="web", seeds=20, step="500us")
    assert answer.witnesses == ["seeds", "trace"] and answer.proof is None
    assert answer.vm == "web" and answer.confidence == 0.95
    assert answer.failing_seeds_at_most is not None and 0.13 < answer.failing_seeds_at_most < 0.14
    assert answer.trace is not None and answer.trace.seed is not None
    late = slackline.run(answer.trace.scenario).metric("jobs late of web")
    assert late is not None and late > 0
    assert "jobs late of web is at most 0" in str(answer.trace.claim)
    with pytest.raises(slackline.SlacklineError, match="no such VM: `db`") as raised:
        slackline.fit(scenario, vm="db")
    assert raised.value.hint == "use one of: web, batch"
    with pytest.raises(slackline.SlacklineError, match="that a run could break"):
        slackline.fit(slackline.Scenario(HOST), vm="web")
    with pytest.raises(slackline.SlacklineError, match="cannot use `reserve` with a scenario"):
        slackline.fit(scenario, vm="web", reserve="10%")
    tight = slackline.Scenario((HOST + CLAIM).replace("uniform 1ms 4ms", "15ms"))
    with pytest.raises(slackline.NotAdmitted, match="with the largest slice that admission"):
        slackline.fit(tight, vm="web", seeds=2)


def test_fit_of_a_scenario_has_larger_failing_slice_and_hint() -> None:
    bound = '[[claim]]\nthat = "promised of web"\nis = "at most 30%"\n'
    answer = slackline.fit(slackline.Scenario(HOST + CLAIM + bound), vm="web", seeds=5, step="500us")
    assert answer.larger is not None and answer.hint is None
    assert answer.larger.reservation.slice_ns > answer.reservation.slice_ns
    assert "promised of web is at most 30" in str(answer.larger.claim)
    blind = slackline.Scenario((HOST + CLAIM).replace("jobs late of web", "misses of web"))
    assert "`jobs late of web`" in str(slackline.fit(blind, vm="web", seeds=5, step="500us").hint)


def test_fit_of_a_recording_delivers_the_recorded_cpu_time(tmp_path: Path) -> None:
    recording = tmp_path / "host.trace"
    slackline.run(slackline.Scenario(HOST), save=recording)
    answer = slackline.fit(recording, vm="web", period="10ms")
    assert answer.seeds == 1 and answer.trace is not None
    # The VM works for 2.5 ms every 20 ms, on average.
    assert 1_100_000 < answer.reservation.slice_ns < 1_400_000
    recorded = slackline.run(slackline.Scenario(HOST)).metric("delivered of web")
    received = slackline.run(answer.trace.scenario).metric("delivered of web")
    assert received is not None and recorded is not None and received < 0.99 * recorded
    answered = HOST.replace('"5ms"', f'"{answer.reservation.slice_ns}ns"', 1)
    sufficient = slackline.run(slackline.Scenario(answered)).metric("delivered of web")
    assert sufficient is not None and sufficient >= 0.99 * recorded
    claims = [("delivered of web", "at least 5%")]
    smaller = slackline.fit(recording, vm="web", period="10ms", claims=claims)
    assert smaller.reservation.slice_ns < answer.reservation.slice_ns
    with pytest.raises(slackline.ScenarioError, match="beauty"):
        slackline.fit(recording, vm="web", claims=[("beauty of web", "at most 1")])
    with pytest.raises(slackline.SlacklineError, match="wab") as raised:
        slackline.fit(recording, vm="wab")
    assert raised.value.hint == "did you mean `delivered of web`?"
    with pytest.raises(slackline.SlacklineError, match="no VM is named"):
        slackline.fit(recording)


def test_refusal_of_a_small_share_names_the_smallest_share() -> None:
    set_ = slackline.TaskSet(tasks())
    with pytest.raises(slackline.NotAdmitted, match="period that was tried, down to 1us") as raised:
        slackline.fit(set_, share="20%")
    assert raised.value.hint == "use a larger `share`: with a period of 100us, 20.60 % suffices"
    assert "more than twice" in str(slackline.fit(set_, period="25ms", reserve="0%").hint)


def test_search_for_most_vms_describes_the_tried_periods() -> None:
    answer = slackline.fit(slackline.TaskSet(tasks()), most_vms=True)
    tried = answer.tried_periods
    assert tried is not None and tried.count > 0 and tried.is_most
    assert 1_000_000 <= tried.shortest_ns <= answer.reservation.period_ns <= tried.longest_ns
    assert (tried.step_ns, tried.shortest_slice_ns) == (1_000, 50_000) and answer.hint is None
    assert slackline.fit(slackline.TaskSet(tasks())).tried_periods is None


def test_task_set_is_made_from_a_list_of_dictionaries() -> None:
    rows = [
        {"name": "control", "work": "1ms", "period": "10ms"},
        {"name": "log", "work": "8ms", "period": "100ms", "deadline": "90ms"},
    ]
    made = slackline.task_set(rows, title="two")
    assert (made.title, len(made), made.utilisation_ppm) == ("two", 2, 180_000)
    assert made.tasks[1].deadline_ns == 90_000_000
    with pytest.raises(slackline.ScenarioError, match="deadline 101ms is more than the period"):
        slackline.task_set([{"work": "1ms", "period": "100ms", "deadline": "101ms"}])
    fixed: list[dict[str, str | int]] = [{"work": "1ms", "period": "9ms", "priority": 3 - at} for at in (1, 2)]
    assert [task.name for task in slackline.task_set(fixed, scheduler="fixed").tasks] == ["task0", "task1"]
    with pytest.raises(slackline.ScenarioError):
        slackline.task_set([{"work": "1ms", "period": float("nan")}])  # type: ignore[dict-item]
    with pytest.raises(slackline.ScenarioError, match="at least one task"):
        slackline.task_set([])


@pytest.mark.parametrize(
    ("arguments", "exception", "message"),
    [
        ({"period": 5}, TypeError, "period"),
        ({"period": "0s"}, slackline.SlacklineError, "period `0s`: must be above zero"),
        ({"period": "-1ms"}, slackline.SlacklineError, "period `-1ms`"),
        ({"period": "nan"}, slackline.SlacklineError, "period `nan`"),
        ({"period": "9" * 100_000 + "s"}, slackline.SlacklineError, "period `9999"),
        ({"period": "5ms", "share": "10%"}, TypeError, "`period` with `share`"),
        ({"share": "101%"}, slackline.SlacklineError, "from 0.000001cpu to 1cpu"),
        ({"share": "0%"}, slackline.SlacklineError, "share `0%`"),
        ({"reserve": "100%"}, slackline.SlacklineError, "must be less than 1cpu"),
        ({"step": "1h"}, slackline.SlacklineError, "the step 3600s must be"),
        ({"delay": "1ms"}, TypeError, "`delay` with a source"),
        ({"vm": "web"}, TypeError, "`vm` with a task set"),
        ({"seeds": -1}, OverflowError, "negative"),
        ({"seeds": 0}, slackline.SlacklineError, "from 1 to 10000"),
        ({"save": "/no/such/it.trace"}, OSError, "cannot write /no/such/it.trace"),
    ],
)
def test_wrong_argument_of_fit_is_refused(
    arguments: dict[str, Any], exception: type[Exception], message: str
) -> None:
    with pytest.raises(exception, match=message) as raised:
        slackline.fit(slackline.TaskSet(tasks()), **arguments)
    assert len(str(raised.value)) < 400


def test_wrong_source_of_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        slackline.fit(3.5)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="cannot read .*missing.toml"):
        slackline.fit(tmp_path / "missing.toml")
    binary = tmp_path / "binary"
    binary.write_bytes(b"title\n\xff\xfe")
    with pytest.raises(slackline.SlacklineError, match=r"binary:2: not a text file: byte 0xff"):
        slackline.fit(binary)
    broken = tmp_path / "broken.trace"
    broken.write_bytes(b"slackline-trace-" + b"\x07" * 64)
    with pytest.raises(slackline.SlacklineError, match="broken.trace"):
        slackline.fit(broken, vm="web")
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(tasks().replace('"12ms"', '"21ms"'))
    with pytest.raises(slackline.ScenarioError, match=r"wrong.toml:7:1: deadline 21ms") as raised:
        slackline.fit(wrong)
    assert (raised.value.line, raised.value.hint) == (7, "a task needs work <= deadline <= period")


def test_room_of_a_scenario_can_be_reserved_and_a_larger_slice_cannot() -> None:
    text = HOST.replace("[[domain]]", "[host]\ncpus = 2\n[[domain]]\ncpus = [0]", 1)
    scenario = slackline.Scenario(text)
    room = scenario.room("10ms")
    assert room["period_ns"] == 10_000_000
    assert [row["cpu"] for row in room["cpus"]] == [0, 1]
    for row in room["cpus"]:
        for more, admitted in ((0, True), (1_000_000, False)):
            share = f'{{ slice = "{row["slice_ns"] + more}ns", period = "10ms" }}'
            further = f'[[domain]]\nname = "new"\ncpus = [{row["cpu"]}]\n'
            further += f'work = {{ kind = "spin" }}\nshare.edf = {share}\n'
            wider = slackline.check(slackline.Scenario(text + further))
            assert wider["admitted"] == admitted, (row, more, wider["refused"])
    with pytest.raises(slackline.SlacklineError, match="`fair` reserve no CPU time"):
        slackline.Scenario(FAIR).room()


FAIR = """title = "fair"
length = "2s"
policy = { name = "fair" }
[[domain]]
name = "web"
work = { kind = "spin" }
share.fair = { weight = 1024 }
"""


def test_check_describes_a_scenario_and_its_refusal() -> None:
    checked = slackline.check(ROOT / "scenarios/schedulers.toml")
    assert checked["admitted"] and checked["refused"] is None and checked["vcpus"] >= 4
    refused = slackline.check(slackline.Scenario(HOST.replace('"3ms"', '"9ms"')))
    assert not refused["admitted"] and "batch" in refused["refused"]


def test_alert_measures_the_error_of_each_second() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    tested = slackline.alert(["edf", "credit"], targets=[10, 50], length="5s", seeds=2)
    assert [(row["case"], row["target_ppm"]) for row in tested.targets] == [
        ("edf", 100_000), ("edf", 500_000), ("credit", 100_000), ("credit", 500_000)
    ]
    seconds = pyarrow.table(tested.seconds)
    assert seconds.num_rows == 2 * 2 * 2 * 5
    for row in tested.targets:
        errors = [
            second["error_ppm"]
            for second in seconds.to_pylist()
            if (second["case"], second["target_ppm"]) == (row["case"], row["target_ppm"])
        ]
        assert (min(errors), max(errors)) == (row["error_least_ppm"], row["error_most_ppm"])
    assert all(abs(row["error_most_ppm"]) < 20_000 for row in tested.targets if row["case"] == "edf")


@pytest.mark.parametrize(
    ("arguments", "exception", "message"),
    [
        ({"targets": [float("nan")]}, slackline.SlacklineError, "targets has NaN"),
        ({"targets": [float("inf")]}, slackline.SlacklineError, "targets has inf"),
        ({"targets": [-1]}, slackline.SlacklineError, "targets has -1: .* at most 100"),
        ({"targets": []}, slackline.SlacklineError, "1 policies and 0 targets"),
        ({"targets": "5"}, TypeError, "targets"),
        ({"length": "10ms"}, slackline.SlacklineError, "from 1s to"),
        ({"seeds": 1001}, slackline.SlacklineError, "seeds 1001: must be from 1 to 1000"),
        ({"seeds": 1000, "length": "24h"}, slackline.SlacklineError, "at most 100000000"),
        ({"set": ["beauty=1"]}, slackline.SlacklineError, "no field `beauty`"),
    ],
)
def test_wrong_argument_of_alert_is_refused(
    arguments: dict[str, Any], exception: type[Exception], message: str
) -> None:
    with pytest.raises(exception, match=message):
        slackline.alert(["edf"], **arguments)
    with pytest.raises(slackline.SlacklineError, match="there is no policy `edff`") as raised:
        slackline.alert(["edff"])
    assert raised.value.hint == "did you mean `edf`?"
