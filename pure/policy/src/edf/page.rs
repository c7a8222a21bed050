//! What `help edf` says.

pub(super) const PAGE: &str =
    "Every vCPU is owed a slice of CPU time in each period: slice = \"2ms\",
period = \"10ms\" is a fifth of a CPU, delivered every ten milliseconds. Of the vCPUs
that are awake and still owed something, the one whose period ends first runs. The
share is slice/period; the period decides how long a vCPU may have to wait for it:
choose it by what the guest does (a few ms for sound and games, seconds for batch).

Admission: each vCPU is bound to one CPU, and the sum of slice/period on it may not exceed
one CPU less the reserve. Inside that bound every deadline is met; beyond it the vCPU is
refused, with both numbers.

Several CPUs: place = \"split\" splits who fits on none of them as a whole. In each period it
has a first part of its slice on one CPU, before all others there, then goes on to another
for the rest (or to two or three). Three of 0.6 of a CPU so fit on two CPUs, and every
deadline is met all the same. Admission then looks at what must be done by when, exactly.
Nobody else moves. Where somebody is split, who sleeps in mid-period loses what it would
have had meanwhile, and a change of terms may begin with the next period. Who has a phase is
not split, nor is anybody where it is. A CPU with parts keeps a thousandth free at least.
On a live host leave them more than that: a part that comes first has no time to be late.

Beyond the slice: a work-conserving vCPU (the default) shares what nobody is owed; with
exact = true it stops until its next period. What a vCPU overran in a turn that was its
due is debt. What it overruns every time is taken from its next slice, which then ends
where it should; what it overran once is paid by unclaimed time, and by its next slices
only where there was none. Timers are never quite steady: so an exact vCPU has whole slices,
and more than its share by what its stops are later on the average than at the least: 10 to
40us a period in a virtual machine, 2us where timers are good. With overrun = \"repay\" it
is the other way round: the share is exact over time, and slices are short by what stops
vary by; so ALERT limits by it.
What it was not given by its deadline comes first when there is unclaimed time.

Sleeping in mid-period saves nothing up beyond slice/period of what is left of it.

A domain of several vCPUs: cpu = \"1.5cpu\" with a period, in place of slice, is for all of
its vCPUs together. Each is promised its even part, as if that were its slice, and has it
whenever it wants it. With spread = \"use\", as is usual then, what some leave of a period is
lent to the others: who ran out in its last period and wants more has it together with its
next slice, until that period ends; who runs out for the first time has it at once. Several
who want it have equal parts. A loan takes nothing from anybody: it is at most what the CPU
has not promised, and what is left and not lent within a period is gone. So one busy vCPU
of four has 1.5cpu as far as a single CPU can give it that beside others, and all together
never have more than their slices come to, and one slice each. Who is admitted comes before
loans: what has been had of one in advance has to be earned first, at most until its period
ends. Nothing is lent on CPUs where somebody is split. slice with spread = \"use\" is the same
with a slice for each; spread = \"even\" leaves each vCPU what is its own, and no more. Where
exact = true no vCPU has more than its slice and its loans.

Changing terms: the new ones begin a period at once, and are worth nothing by themselves.
What was used of the old slice beyond the part of the period that has passed is taken
from the first new slices; so it is for who leaves and comes back. What a share gives up
stays promised until it has earned what was had in advance, at most until its period
ends, if somebody waits there for its due: nobody else misses a deadline for a change.

Phase: with phase = \"3ms\" periods begin 3 ms after whole periods of the host's time, which a
live host counts from its start. Those of several vCPUs then begin at once, whenever each of
them came, as a parallel program wants it. The first period ends on the grid and is worth its
part of a slice, so a phase gains nothing and costs nothing.";
