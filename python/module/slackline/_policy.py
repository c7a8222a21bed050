"""Base class of scheduler policies that are written in Python."""

from __future__ import annotations

from typing import Any, ClassVar


class Policy:
    """A scheduler policy for the simulated host. Subclass it, and give the class to `run`.

    The host creates one object for each run. It calls `setup` once, and the other methods when
    events happen. vCPUs are small integers (their index in `Scenario.vcpus`), times are nanoseconds
    since the start of the run, and sets of CPUs are bit masks: CPU 0 is 1, CPU 1 is 2, and both
    CPUs together are 3. Methods that may return a set return the CPUs to reschedule, or None for no
    CPU.

    The host checks the same contract as for built-in policies, and raises `ContractBroken` if, for
    example, `pick` returns a vCPU that is blocked or runs on another CPU. Python policies are only
    for simulation: `slackline run` and `slackline serve` do not know Python policies.
    """

    #: Built-in policy whose parameters a scenario gives, such as "edf". `admit` gets the `share` of
    #: each vCPU for that policy. Metrics count deadline misses by the slice, if the share has one.
    parameters: ClassVar[str] = "round-robin"

    def setup(self, cpus: int, parameters: dict[str, Any]) -> None:
        """Prepare a run on this number of CPUs, with the parameters of the policy as a whole."""

    def admit(self, now: int, vcpu: int, share: dict[str, Any]) -> None:
        """Admit a vCPU, or new parameters of an admitted vCPU. Raise `NotAdmitted` to refuse."""

    def on_leave(self, now: int, vcpu: int) -> int | None:
        """Remove a vCPU."""

    def on_wake(self, now: int, vcpu: int) -> int | None:
        """Handle a wake. Return the CPUs whose occupant the woken vCPU may preempt.

        If no such CPU picks the vCPU, the host offers the vCPU to an idle CPU.
        """

    def on_start(self, now: int, vcpu: int, cpu: int) -> int | None:
        """Handle the start of a run interval of a vCPU on a CPU."""

    def charge(self, now: int, vcpu: int, ran: int) -> int | None:
        """Charge a vCPU for the CPU time that it received since its last charge."""

    def on_timeslice_end(self, now: int, vcpu: int) -> int | None:
        """Handle the end of the timeslice of a vCPU that stays runnable."""

    def on_block(self, now: int, vcpu: int) -> int | None:
        """Handle a block: the vCPU has no more work."""

    def pick(
        self, now: int, cpu: int, current: int | None, eligible: list[int]
    ) -> int | tuple[int, int | None] | tuple[int, int | None, bool] | None:
        """Choose the vCPU to run on a CPU from now on.

        `eligible` has the runnable vCPUs that may run on this CPU. `current` is the vCPU that
        occupies the CPU, or None. Return a vCPU, or None to leave the CPU idle. Or return a tuple:
        the vCPU, the limit of its timeslice in nanoseconds (or None), and optionally True for
        reserved time or False for slack.
        """
        raise NotImplementedError("a policy must define `pick`")

    def next_timer(self, cpu: int) -> int | None:
        """Return the time at which `on_timer` must be called for this CPU, or None."""

    def on_timer(self, now: int, cpu: int) -> int | None:
        """Handle the timer of a CPU."""
