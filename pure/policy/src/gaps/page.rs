//! The manual page.

/// What `slackline help gaps` says, before the fields.
pub(super) const PAGE: &str =
    "Accounts, turns, caps and weights are those of `credit`: read `slackline help credit`
first. There, those with credit left (UNDER) run in the order in which they came. What
runs inside a guest is nobody's concern: a web server in a guest that also computes
waits behind every other guest, a turn of each, although it needs the CPU for 60us. A
guest that only waits would be boosted as it wakes; one that is never idle never
wakes.

Here guests tell which of their tasks are the most urgent: those that want the CPU,
those that wait for something, and those that I/O has woken lately. The domain that
does I/O for the others tells for whom something waits. A vCPU's claim is its most
urgent task that wants the CPU; or, where I/O has been done for its domain, the most
urgent of those that wait and that I/O has woken lately, for it is probably for that
one. When a CPU chooses anew, whoever in its list claims most goes ahead of the one
whose turn it is; only those boosted as they wake are served as ever. Who tells
nothing claims nothing, and stands in line as under `credit`. Who does I/O for others
is as urgent as can be.

match = \"exact\" believes who does the I/O rather than the list: a task that waits counts
if what has been done is for it, as who hands it over sees by the port or the request.
The list forgets nobody: where other tasks of the guest have I/O of their own, most of
what it takes to be for the server is for them, and a guest goes ahead of others for
nothing. In a guest with a server that is asked five times a second and 50 packets a
second for a less urgent task, six times in ten by the paper's rules, and the server,
for which no credit is left then, answers in 45 ms; by the exact match never, and in 24.

tell = \"inferred\" asks no guest: it needs only the domain that does I/O, which says what
waits for whom and that a domain has asked for something. Who has answered at least
eight of the last ten that it took notice of after no more than answers-within (1 ms) of
CPU time has a quick server in it, and is as urgent as 100 while something waits for it
that it has not answered, for as long as that takes at most. That serves a server alone
in a busy guest as well as its own word does, and a liar has nothing to say. But it sees
domains, not tasks: what the guest calls ordinary is served like its server if it answers
as quickly, where most of what comes is never answered nobody is quick, and a server
that takes longer is not seen. Turns are bounded as ever, so a wrong guess costs no
other domain anything. tell = \"none\" listens to nobody, and is `credit`.

Urgency is on one scale for all guests, less is more: 0 to 99 is real-time work, 120
what runs without a wish, from 140 on what may wait. A task's `priority` in a scenario
counts the other way round: priority 135 is urgency 120.

Nobody vouches for what a guest tells, so going ahead is bounded. A domain may have
boost-cap (25 %) of its own share by weight ahead of others, and may save up
boost-depth (10 ms) of it; its share is that among all domains that are there. A turn
ahead ends with what was claimed, when nothing is left, or after a slice; then the
domain has the place in line that it had, and its own turn is yet to come. All of it
is paid for from its credit. So whoever claims what is not so gains no CPU time in the
long run, and spends what it would need later; and all claims together delay the
others by boost-cap of the time and by boost-depth of each domain, however many lie.

Whoever claims most pays for it in its own turn too. Otherwise one that says that all
it does is urgent would have whole turns for nothing in which nobody could go ahead of
it. And ordinary work, of urgency 120 or less urgent, claims nothing there: what a
guest computes would use up what its server needs.

rules = \"paper\" is the rule as it was published, on Xen 3.0.4's Credit: whoever of
those UNDER claims most goes ahead for a whole slice, as often as it is UNDER;
paper-ro looks only at tasks that want the CPU. That removes first come, first served
from those UNDER, and with it what made Credit fair. Somebody who claims less than the
others stays UNDER and waits; its credit grows past a period's, Xen 3.0.4 then takes
all of it away, and the others share what it would have had. It may get nothing at all
for as long as they want the CPU: four that compute, the least urgent woken 20 ms
after the others, and it has its last turn at 80 ms. Some starts and loads lead there
and others do not. The published figures also want rotation = \"turn\": by Xen 3.0.4's
own rule who is preempted goes behind all others, and a server that answers at once is
preempted by its own answer. Nor does it help much where accounts are exact, for there
whoever has had its part is OVER at once: a server beside three that compute answers
in 12 ms under `credit` and no sooner if only those UNDER are reordered; by the
bounded rule, which can afford to reorder everybody (among = \"all\"), it answers in 0.32
ms, which is what the path takes, and beside one that lies in 0.37 ms.

Each CPU looks at its own list; what it takes from another CPU's is the first there.
Which domain may tell what waits for whom is for the host to say: the simulated one
hears it from the domain of [driver], if that has tells = true. Guests tell with tells
= true as well; `slackline help scenario` says how. Live, an agent inside the guest tells
(`slackline help agent`), and what it claims lapses after 100 ms; what waits for a guest of
QEMU is known where it goes through the host (`relay`, the same page). What a domain's own
devices say of it makes it nobody's driver, and is a reason to choose anew: no driver
domain wakes there to do that, and sleeps.";
