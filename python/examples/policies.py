"""Four scheduler policies in a few lines each: round robin, EDF, lottery and a Credit2-like one."""

from __future__ import annotations

import random
from typing import Any

import slackline

MS = 1_000_000


class RoundRobin(slackline.Policy):
    """All runnable vCPUs take turns of one quantum, in one queue for all CPUs."""

    parameters = "round-robin"

    def setup(self, cpus: int, parameters: dict[str, Any]) -> None:
        self.quantum = parameters["quantum"]
        self.queue: list[int] = []
        self.used: dict[int, int] = {}

    def admit(self, now: int, vcpu: int, share: dict[str, Any]) -> None:
        self.used[vcpu] = 0

    def on_wake(self, now: int, vcpu: int) -> None:
        self.on_block(now, vcpu)
        self.used[vcpu] = 0
        self.queue.append(vcpu)

    def on_start(self, now: int, vcpu: int, cpu: int) -> None:
        self.queue.remove(vcpu)

    def charge(self, now: int, vcpu: int, ran: int) -> None:
        self.used[vcpu] += ran

    on_timeslice_end = on_wake

    def on_block(self, now: int, vcpu: int) -> None:
        if vcpu in self.queue:
            self.queue.remove(vcpu)

    def pick(
        self, now: int, cpu: int, current: int | None, eligible: list[int]
    ) -> tuple[int, int | None] | None:
        if current is not None and current not in self.queue:
            chosen = current
        else:
            waiting = [vcpu for vcpu in self.queue if vcpu in eligible]
            if not waiting:
                return None
            chosen = waiting[0]
        return chosen, max(0, self.quantum - self.used[chosen])


class Edf(slackline.Policy):
    """Earliest deadline first on one CPU, with hard limits: a slice in each period, no slack."""

    parameters = "edf"

    def setup(self, cpus: int, parameters: dict[str, Any]) -> None:
        self.slice: dict[int, int] = {}
        self.period: dict[int, int] = {}
        self.deadline: dict[int, int] = {}
        self.budget: dict[int, int] = {}
        self.blocked_at: dict[int, int] = {}

    def admit(self, now: int, vcpu: int, share: dict[str, Any]) -> None:
        used = sum(self.slice[it] / self.period[it] for it in self.slice if it != vcpu)
        if used + share["slice"] / share["period"] > 1:
            raise slackline.NotAdmitted(f"vCPU {vcpu}: {used:.0%} of the CPU is reserved already")
        self.slice[vcpu], self.period[vcpu] = share["slice"], share["period"]
        self.deadline[vcpu], self.budget[vcpu] = now + share["period"], share["slice"]
        self.blocked_at[vcpu] = now

    def on_leave(self, now: int, vcpu: int) -> None:
        for table in (self.slice, self.period, self.deadline, self.budget, self.blocked_at):
            del table[vcpu]

    def replenish(self, now: int) -> None:
        for vcpu, deadline in self.deadline.items():
            if deadline <= now:
                periods = (now - deadline) // self.period[vcpu] + 1
                self.deadline[vcpu] = deadline + periods * self.period[vcpu]
                self.budget[vcpu] = self.slice[vcpu]

    def on_wake(self, now: int, vcpu: int) -> int:
        self.replenish(now)
        begin = self.deadline[vcpu] - self.period[vcpu]
        blocked = now - max(self.blocked_at[vcpu], begin)
        rest = self.slice[vcpu] * (self.deadline[vcpu] - now) // self.period[vcpu]
        self.budget[vcpu] = min(self.budget[vcpu], max(self.budget[vcpu] - blocked, rest))
        return 1

    def on_block(self, now: int, vcpu: int) -> None:
        self.blocked_at[vcpu] = now

    def charge(self, now: int, vcpu: int, ran: int) -> None:
        self.budget[vcpu] -= ran

    def pick(
        self, now: int, cpu: int, current: int | None, eligible: list[int]
    ) -> tuple[int, int | None] | None:
        ready = [vcpu for vcpu in eligible if self.budget[vcpu] > 0]
        if not ready:
            return None
        first = min(ready, key=lambda vcpu: (self.deadline[vcpu], vcpu))
        return first, self.budget[first]

    def next_timer(self, cpu: int) -> int | None:
        return min(self.deadline.values(), default=None)

    def on_timer(self, now: int, cpu: int) -> int:
        self.replenish(now)
        return 1


class Lottery(slackline.Policy):
    """Each timeslice goes to a vCPU drawn at random by its weight (Waldspurger and Weihl 1994)."""

    parameters = "credit"

    def setup(self, cpus: int, parameters: dict[str, Any]) -> None:
        self.random = random.Random(1)
        self.tickets: dict[int, int] = {}
        self.running: dict[int, int] = {}

    def admit(self, now: int, vcpu: int, share: dict[str, Any]) -> None:
        self.tickets[vcpu] = share["weight"]

    def on_start(self, now: int, vcpu: int, cpu: int) -> None:
        self.running[cpu] = vcpu

    def on_timeslice_end(self, now: int, vcpu: int) -> None:
        self.running = {cpu: it for cpu, it in self.running.items() if it != vcpu}

    def pick(
        self, now: int, cpu: int, current: int | None, eligible: list[int]
    ) -> tuple[int, int | None] | None:
        if not eligible:
            return None
        if current is not None and self.running.get(cpu) == current:
            return current, 10 * MS
        tickets = [self.tickets[vcpu] for vcpu in eligible]
        [winner] = self.random.choices(eligible, tickets)
        return winner, 10 * MS


class CreditTwo(slackline.Policy):
    """Like Xen's Credit2: running costs credit by weight. The vCPU with the most credit runs."""

    parameters = "credit"
    START = 10 * MS

    def setup(self, cpus: int, parameters: dict[str, Any]) -> None:
        self.all = (1 << cpus) - 1
        self.weight: dict[int, int] = {}
        self.credit: dict[int, float] = {}

    def admit(self, now: int, vcpu: int, share: dict[str, Any]) -> None:
        self.weight[vcpu] = share["weight"]
        self.credit.setdefault(vcpu, self.START)

    def on_leave(self, now: int, vcpu: int) -> None:
        del self.weight[vcpu], self.credit[vcpu]

    def on_wake(self, now: int, vcpu: int) -> int:
        return self.all

    def charge(self, now: int, vcpu: int, ran: int) -> None:
        self.credit[vcpu] -= ran * max(self.weight.values()) / self.weight[vcpu]

    def pick(
        self, now: int, cpu: int, current: int | None, eligible: list[int]
    ) -> tuple[int, int | None] | None:
        if not eligible:
            return None
        first = max(eligible, key=lambda vcpu: (self.credit[vcpu], vcpu == current, -vcpu))
        if self.credit[first] <= 0:
            # All runnable vCPUs are out of credit. New credit for every vCPU keeps their order.
            for vcpu in self.credit:
                self.credit[vcpu] = min(self.credit[vcpu], 0) + self.START
        return first, 2 * MS


if __name__ == "__main__":
    scenario = slackline.Scenario(
        """
title = "two hogs, two to one"
length = "10s"
policy = { name = "credit" }
[[domain]]
name = "heavy"
work = { kind = "spin" }
share.credit = { weight = 512 }
share.bvt = { weight = 512 }
[[domain]]
name = "light"
work = { kind = "spin" }
share.credit = { weight = 256 }
share.bvt = { weight = 256 }
"""
    )
    for row in slackline.compare(scenario, ["credit", "bvt", Lottery, CreditTwo]):
        print(f"{row['policy']:10} {row['name']:6} {row['delivered_ppm'] / 10_000:6.2f} %")
