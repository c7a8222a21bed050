//! The manual page.

pub(super) const PAGE: &str = "\
sedf is the earliest-deadline-first scheduler of Xen 3.0. A vCPU has a
guarantee, takes what is left over, or both:

  slice = \"5ms\", period = \"20ms\"                  5 ms of every 20 ms, and slack
  slice = \"5ms\", period = \"20ms\", extra = false   5 ms of every 20 ms, no more
  (nothing)                                       best effort: slack only
  extra-weight = 64                               best effort, 64 times that
  weight = 7, extra = false                       a slice by weight, see below

Guarantees. Of the vCPUs that have not used up their slice, the one whose
period ends first runs. Slices on one CPU must not add up to more than a CPU
less the reserve. weight splits what is left of 95 ms in every 100 ms among
those that have one, as slices that change when others come and go.

Slack is what nobody is guaranteed, or did not use. It is handed out in quanta
of 500 us: first to make up for slices lost by blocking (slack = \"penalty\"
stops here), then to all vCPUs with extra, by extra-weight or by slice/period.
Extra-weight 128 counts as much as a slice as long as its period.

Blocking. A vCPU that sleeps in mid-period cannot have its whole slice when it
wakes without making others late. unblocking says what it may have:
  proportional   what would be left had it run, or its share of what is left
                 of the period, whichever is more; nobody becomes late
  isochronous    nothing until its next period
  conservative   the same, but after a sleep beyond the end of the period a
                 new one begins at once
  short-resume   what is left once the sleep counts as used
  latency-hint   as conservative; after a long sleep the period is as short as
                 latency, and doubles until it is what it was
  burst          as short-resume; with too little left, the period becomes as
                 long as it took from one wake to the next, and what was used
                 stays: so the first short period is mostly skipped
  extra-support  as conservative, and the loss is made up for from slack

Changing terms under \"proportional\" begins a period at once. What was used of
the old slice beyond the part of the period that has passed, or overrun, is
taken from the new ones, also from who leaves and comes back; what is given up
stays promised until that is earned, if somebody waits for its slice. The other
ways of unblocking keep period and use as they were, as Xen does.

A slice by weight under \"proportional\", with admission, holds for its 100 ms.
When others come or go it is set anew as its next period begins, from what has
been earned by then: who comes with a weight may have its part a period later.
Where a reservation comes or grows, slices by weight shrink at once; what they
have had in advance by then may make a slice late, once. Elsewhere all are set
anew at every change, as Xen does.

Several CPUs. A vCPU is put on a CPU when it is admitted. place says on which
who has a slice:
  spread   the one with the most room left
  pack     the first with enough
  split    as spread; who fits on none of them as a whole is split. In each
           period it has a first part of its slice on one CPU, before all
           others there, then goes on to another for the rest (or to two or
           three), and has its slack where it is. Three of 0.6 of a CPU so fit
           on two, and no slice is missed
Splitting needs admission, unblocking = \"proportional\" and first-period =
\"at-once\", as rules = \"best\" has them, and packing needs admission; beside
other rules they are refused. Where somebody is split, who sleeps in mid-period
loses what it would have had meanwhile (from slack it is made up for as ever), a
change of terms may begin with the next period, and a thousandth of the CPU
stays free. Slices by weight are never split, nor on a CPU with parts: somebody
with a weight who may run on no other is refused. Best effort goes anywhere.

Each CPU shares its slack out by itself: three best-effort loops on two CPUs
have 1, 1/2 and 1/2. balancer moves best-effort vCPUs, and only those, so no guarantee is
touched; they go at once, but only where their cpus allow it.
  none       everybody stays where it was put
  thesis     every 500 ms a CPU that has little slack for the weight on it
             (its tau) swaps vCPUs with one that has much, so that about the
             weight goes that makes the two equal; of three loops on two CPUs
             each then has 2/3, in turns, each alone every third time
  repaired   the same without three holes of it: an idle CPU takes somebody
             also where that is more than its part; equal CPUs take turns by
             how far ahead those on them are; a pair that finds nothing to
             swap may try others
  planned    what each should have is worked out, and everybody who fits is
             whole on one CPU; the few who fit nowhere are on two or more, one
             after the other in each half second, at their planned rate there.
             More exact than swaps where vCPUs are busy all the time, as it
             moves fewer; who sleeps is never split
CPU 0 is rung every 50 ms for it: every second time what each vCPU had, and
what guarantees left of each CPU, is sampled and averaged (half old, half new);
every tenth is a run. Weights count for the part of the time that a vCPU was
awake.
What such a call takes is charged to nobody unless somebody pays for it. Of
CPU 0 balancer-slice in every 50 ms then stays free of promises, enough for 64
CPUs with 256 vCPUs: so it is on a live host. On a simulated one with
[host] balancing (slackline help host) that slice is promised to a vCPU called
[balancer], the thesis's service vCPU. It wakes every 50 ms, runs for as long
as a call takes, as soon as its turn comes, and then the call is made. Where
CPU 0 is promised to the last that is up to 50 ms later, and nobody is late for
it. What a call takes beyond the slice it has in the next periods, and calls
come as much less often. Anybody with balances = true pays likewise, live too:
a call that is due is made as it falls asleep, and not before.
On a live host slack is shared with what else runs there. Of the vCPUs of a CPU
only the one whose turn it is takes part in that, as an ordinary thread; the
others come behind all ordinary threads meanwhile (but process trees do not; and a
thread that one of QEMU's vCPUs starts just then stays behind).
What others than ours had of a CPU is not counted as there to be had.
close says how near a swap must come to the weight that should go; tau says
over what averages are taken; two CPUs swap only if their taus differ by more
than least-difference of what all should have. Where cores have several
threads, time beside a busy one counts as smt-believed of it: what the balancer
believes, whatever the machine does. CPUs on which nobody may run in common are
balanced apart. account shows on which CPU a vCPU is.

rules = \"best\" keeps every guarantee. \"xen-3.0.3\", \"xen-3.0.2\" and \"thesis\"
(the tree of August 2005) do what those did: a slice lost by blocking is made
up for by one quantum (3.0.3) or in whole quanta (before); extra time counts
in whole quanta and forgives an overrun; a missed deadline is forgotten; a gap
shorter than a quantum is idle; the first period begins one slice late; and
nothing is refused however much is promised; a slice by weight has
extra-weight 1. Each is a field of its own.";
