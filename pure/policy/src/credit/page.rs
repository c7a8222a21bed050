//! The manual page.

/// What `slackline help credit` says, before the fields.
pub(super) const PAGE: &str =
    "Every domain is given credit by its weight and pays with it for CPU time: twice the
weight, twice the time, and the vCPUs of a domain share what it is given. A vCPU is
UNDER while it has credit left and OVER when it has none. Those UNDER run before those
OVER, each for a turn (a tick of 10 ms) in the order in which they came, or for as long
as it is owed more than a period and more than the next one. CPU time that nobody UNDER
wants goes to those OVER. Accounts are the same on all CPUs, and a CPU that finds nobody
UNDER in its own list takes somebody from another's. No CPU idles while somebody waits
who may run on it and is not held to a cap; by Xen's rules that may last for a slice.

Waking: who wakes UNDER is boosted and runs before all others for up to a tick (10 ms) of
CPU time. It pays for it, so who sleeps little is soon OVER and waits like the rest.

Cap: cap = \"0.4cpu\" is the most that all vCPUs of the domain may use together, in every
period of three ticks, even if a CPU idles. What is not used is not saved up; what a late
timer let it use beyond is owed, all of it.

How long one may wait: credit and debt are kept up to a period for each active vCPU and
one more. So with n active vCPUs that weigh W together, one of weight w works its debt
off in (n + 1) W / w periods / CPUs at most, and what the others have saved up may come
before it n times as long: it runs within (n + 1) (n + 2) W / w periods / CPUs.

Shares: who always has work gets the CPU time that is due by weight to n + 2 periods for
each of its vCPUs, however long the time and on any number of CPUs. A vCPU has no use for
more than one CPU: what its weight would give it beyond goes to the others by theirs.

Gangs: a guest with spin locks works only while all of its vCPUs run. One that loses its CPU
and holds a lock has its siblings spin, and pay for it. With gang = \"relaxed\", of a domain
that asks for it (share.credit = { gang = true }) whoever is given a CPU brings its waiting
siblings along: each gets a CPU where nobody runs who comes before it by class, or is of the
same and owed more than a period, and all their turns end at once. Where one cannot come, or
is stopped early by somebody who wakes, the others run on for the skew (500us) and then go
behind the rest of their class. Shares, caps and the bounds above stay what they are; two
gangs leave each other their turns. It gains nothing where siblings never wait for a CPU or
are in step anyhow, and still spins most of its time where fewer CPUs are left than it has
vCPUs. Simulated, four vCPUs with such a lock beside five hogs on four CPUs did 3 times as
much (scenarios/spinning.toml), and out of step by a few milliseconds for ever 90 times; live
no such guest has been measured. Where others than the vCPUs take much of the CPUs, as on a
busy live host, all have credit left and who comes first has more. On such a host, 93 % of
two CPUs left, two of a gang had 37.6 to 37.9 % each on average beside three with 36.2 to
36.9, and single ones 35 to 40 (four runs of 22 s); without gangs each had 37.3 to 38.3.

rules = \"xen-3.0.3\", \"xen-2006-10-30\" and \"xen-3.0.4\" behave like these versions of Xen,
flaws included: turns of three ticks; whoever runs at a tick pays for all of it, and who
sleeps through ticks pays nothing; caps are rounded up (by 3.0.3 to 3.33 % of a CPU) and
hold a vCPU only from the next turn on; debt and saved credit are forgotten. Each such
rule is a parameter by itself: try one at a time. At one instant they keep Xen's order:
who blocks, ticks, wakes, and passes last, by CPU number. What still departs, and by how
much in simulations:
  a change of weight or cap neither stops nor boosts anybody. Stopping and letting go
  who is changed, as Xen did, moved at most one slice (30 ms) from one to another, once
  for each change, and two by 3.0.3 (120 changes among 2 to 4 that always run);
  no slice ends up to 50us early with another timer, but where the host says
  timer_slop = \"50us\": that moved at most 0.8 % of a CPU in two minutes (40 mixes of
  hogs and sleepers on 1 and 2 CPUs), which way depends on the mix;
  no CPU passes another by because that one holds a lock: passes take no time here.";
