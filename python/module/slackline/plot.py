"""Plots of runs. Needs matplotlib.

>>> import slackline.plot
>>> slackline.plot.timeline(slackline.run(scenario, columns=True), until_ns=50_000_000)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._errors import SlacklineError
from ._slackline import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MS = 1e6


def _axes(axes: Axes | None) -> Axes:
    if axes is not None:
        return axes
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise SlacklineError("plots need matplotlib: pip install matplotlib") from error
    return plt.figure(figsize=(8, 3), layout="constrained").add_subplot()


def timeline(
    run: Run, *, from_ns: int = 0, until_ns: int | None = None, axes: Axes | None = None
) -> Axes:
    """Draw which vCPU ran when, one row for each vCPU and one colour for each CPU.

    Reserved CPU time is drawn dark, slack light. The run must have been made with `columns=True`.
    """
    import pyarrow

    if run.intervals is None:
        raise SlacklineError("the run has no columns: run it with columns=True")
    drawn = _axes(axes)
    names = [vcpu["name"] for vcpu in run.vcpus]
    for interval in pyarrow.table(run.intervals).to_pylist():
        begin, end = interval["from_ns"], interval["to_ns"]
        if end <= from_ns or (until_ns is not None and begin >= until_ns):
            continue
        drawn.barh(
            names.index(interval["vcpu"]),
            (end - begin) / _MS,
            left=begin / _MS,
            color=f"C{interval['cpu'] % 10}",
            alpha=1.0 if interval["reserved"] else 0.45,
            height=0.8,
        )
    drawn.set_yticks(range(len(names)), names)
    drawn.invert_yaxis()
    drawn.set_xlim(from_ns / _MS, None if until_ns is None else until_ns / _MS)
    drawn.set_xlabel("time (ms)")
    return drawn


def compare(
    rows: Sequence[Mapping[str, Any]], metric: str, *, unit: float = 1.0, axes: Axes | None = None
) -> Axes:
    """Draw a metric of each vCPU under each policy as bars, from the rows of `slackline.compare`.

    A bar is the mean over the seeds, divided by `unit`. A line reaches from the smallest to the
    largest value. vCPUs without a value are left out.
    """
    if not any(row.get(metric) is not None for row in rows):
        raise SlacklineError(f"no row has a value for `{metric}`")
    drawn = _axes(axes)
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    known = [row for row in rows if row[metric] is not None]
    vcpus = list(dict.fromkeys(row["name"] for row in known))
    width = 0.8 / len(policies)
    for number, policy in enumerate(policies):
        label: str | None = policy
        for place, vcpu in enumerate(vcpus):
            found = [
                row[metric] / unit
                for row in known
                if row["policy"] == policy and row["name"] == vcpu
            ]
            if not found:
                continue
            mean = sum(found) / len(found)
            drawn.bar(
                place + (number + 0.5) * width - 0.4,
                mean,
                width,
                yerr=[[mean - min(found)], [max(found) - mean]],
                color=f"C{number % 10}",
                label=label,
            )
            label = None
    drawn.set_xticks(range(len(vcpus)), vcpus)
    drawn.set_ylabel(metric)
    drawn.legend()
    return drawn
