//! Meaning of every metric, for users: one list for tables, JSON, claims and help.

use crate::Unit;

/// Meaning of a field of a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Name of the field in JSON. A distribution has one entry: the common start of its field
    /// names, without `_p50_ns` and so on.
    pub field: &'static str,
    /// Heading in tables. Empty if tables do not show the field.
    pub heading: &'static str,
    /// Meaning, with the unit if the field's name does not end in one.
    pub says: &'static str,
    kind: Kind,
}

/// Kind of value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Text or flag. No claim can refer to it.
    Text,
    /// Number in the unit that ends the field's name.
    Number,
    /// Distribution: the count and four times.
    Spread,
}

/// Terms of one kind of subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glossary {
    /// Subjects that have these fields, in words.
    pub of: &'static str,
    /// Terms in the order of the fields.
    pub terms: &'static [Term],
    /// True if claims can refer to these fields.
    pub are_claimed: bool,
}

/// Endings of the field names of a distribution.
pub(crate) const SPREAD: [&str; 5] = ["_count", "_p50_ns", "_p90_ns", "_p99_ns", "_worst_ns"];

const fn text(field: &'static str, heading: &'static str, says: &'static str) -> Term {
    Term { field, heading, says, kind: Kind::Text }
}

const fn number(field: &'static str, heading: &'static str, says: &'static str) -> Term {
    Term { field, heading, says, kind: Kind::Number }
}

const fn spread(field: &'static str, heading: &'static str, says: &'static str) -> Term {
    Term { field, heading, says, kind: Kind::Spread }
}

/// All terms, by kind of subject.
pub const GLOSSARY: &[Glossary] = &[
    Glossary {
        of: "a vCPU, a domain (all of its vCPUs), or the whole run",
        terms: VCPU,
        are_claimed: true,
    },
    Glossary { of: "a CPU (`cpu0`), or all of them", terms: CPU, are_claimed: true },
    Glossary { of: "the whole run", terms: RUN, are_claimed: true },
    Glossary {
        of: "a named task of a domain (`web/0`), also the requests of clients that it serves",
        terms: TASK,
        are_claimed: true,
    },
    Glossary {
        of: "a client on the network (`client0`), in the order of the scenario",
        terms: CLIENT,
        are_claimed: true,
    },
    Glossary {
        of: "a domain, with --xenmon (XenMon's own words)",
        terms: XENMON,
        are_claimed: false,
    },
];

const VCPU: &[Term] = &[
    text("name", "vCPU", "name of the domain, and the number of the vCPU if it has several"),
    text("vcpu", "", "id: slot, domain and number"),
    text("exact", "", "true if its reservation is a hard limit; otherwise tables show a +"),
    number("promised_slice_ns", "promised", "CPU time reserved in every period"),
    number("promised_period_ns", "promised", "length of a period"),
    number(
        "promised_ppm",
        "promised",
        "slice/period as a part of a CPU, averaged over the time to which `delivered` refers",
    ),
    number("delivered_ns", "", "CPU time received (in claims `delivered time`)"),
    number(
        "delivered_ppm",
        "delivered %",
        "CPU time received, as a part of one CPU. Measured over the whole periods of its \
         reservation, like `error`. Measured over all the time it was present if it has no \
         reservation or no whole period, or if its reservation changed",
    ),
    number("present_ns", "", "time it was present in the measured time"),
    number(
        "work_ppm",
        "work %",
        "useful work, as a part of what one CPU does at full speed while it is present: CPU time \
         less `overhead`, `slowed` and `spun`. Shown if there is any of these, unknown live",
    ),
    number("work_ns", "", "useful work as CPU time at full speed (in claims `work time`)"),
    number(
        "slowed_ns",
        "",
        "CPU time lost because other CPUs slowed its CPU: other threads of the core (`smt` of \
         [host]), or all CPUs that share the memory bus (`bus`)",
    ),
    number(
        "spun_ns",
        "spun %",
        "CPU time spent waiting for a spin lock, in tables as a part of the CPU time received. \
         Counted when it gets the lock. Shown if any vCPU waited, unknown live",
    ),
    number(
        "overhead_ns",
        "overhead, %",
        "simulated: CPU time that it paid for overhead of all kinds below; tables show it as a \
         part of the time for which it was present",
    ),
    number("switch_overhead_ns", "switch", "time for switches to it (`switch` of [host])"),
    number("migration_overhead_ns", "migration", "time for its migrations (`migrate`)"),
    number(
        "refill_overhead_ns",
        "refill",
        "time lost to cold caches after others ran (`dispatch` and `cache` of the domain)",
    ),
    number("tick_overhead_ns", "tick", "time for ticks of its CPU (`tick_cost`)"),
    number("interrupt_overhead_ns", "interrupt", "time for interrupts (`interrupt`, `ipi`)"),
    number("balancing_overhead_ns", "balancing", "time for calls of the balancer (`balancing`)"),
    number(
        "second_least_ppm",
        "",
        "least CPU time received in a whole second, counted from the end of the warm-up",
    ),
    number("second_most_ppm", "", "most CPU time received in a whole second"),
    number("ten_seconds_least_ppm", "", "least CPU time received in whole ten seconds"),
    number("ten_seconds_most_ppm", "", "most CPU time received in whole ten seconds"),
    number(
        "error_ppm",
        "error %",
        "(delivered - promised)/promised over the whole periods of its reservation. Less is no \
         error if it was blocked, more is an error only if it is exact",
    ),
    number(
        "second_error_p99_ppm",
        "error in 1 s, %: p99",
        "99th percentile of the error of single seconds, without its sign",
    ),
    number(
        "second_error_worst_ppm",
        "error in 1 s, %: worst",
        "largest error of a single second, without its sign",
    ),
    number("seconds", "", "number of single seconds whose error was taken"),
    number(
        "deadlines",
        "deadlines",
        "number of periods judged: those in which it stayed runnable until its slice was \
         complete, or until the end",
    ),
    number(
        "misses",
        "missed",
        "number of deadlines missed: its slice was incomplete at the end of the period",
    ),
    spread(
        "miss_time",
        "late by",
        "tardiness of missed deadlines: time from the end of the period until the slice was \
         complete",
    ),
    number(
        "miss_time_p50_of_slice_ppm",
        "",
        "median tardiness of missed deadlines, as a part of the slice",
    ),
    number(
        "miss_time_p99_of_slice_ppm",
        "",
        "99th percentile of the tardiness of missed deadlines, as a part of the slice",
    ),
    number(
        "miss_time_worst_of_slice_ppm",
        "late by: % of slice",
        "largest tardiness of a missed deadline, as a part of the slice",
    ),
    spread(
        "wake_to_run",
        "wake to run",
        "time from a wake-up until it runs; comparisons show the number of wake-ups as `n of \
         wakes`. It counts wake-ups after the warm-up that led to a run interval, and one that \
         still waits at the end, with its wait so far. A wake-up in the warm-up does not count, \
         even if the run interval follows later, nor does one after which the vCPU blocks again \
         without having run. A vCPU that joins runnable has not woken up",
    ),
    number(
        "switches",
        "switches",
        "number of times it was put on a CPU after the warm-up: run intervals that do not \
         directly continue its last one on that CPU. It counts when the CPU was idle in between, \
         and does not when it is picked again at the end of its timeslice",
    ),
    number("migrations", "migrations", "number of times it was put on another CPU than before"),
    number(
        "boosts",
        "boosts",
        "number of boosts with which it ran: wakes after which it preceded others (credit, gaps)",
    ),
    number(
        "false_boosts",
        "false boosts",
        "number of boosts that ended while it ran on, as it computes; a boost is of use to a vCPU \
         that blocks before",
    ),
    number("boosted_ns", "boosted s", "time it ran with a boost"),
    number(
        "waiting_ns",
        "waiting s",
        "time it was runnable and did not run; live, stopped_ns is not in it",
    ),
    number(
        "wait_worst_ns",
        "",
        "longest time without a break that it was runnable and did not run",
    ),
    number(
        "stopped_ns",
        "",
        "live: time it was runnable and kept from running because its budget was exhausted",
    ),
    number("asleep_ns", "", "time it was blocked"),
    number("overrun_ns", "", "CPU time used beyond the end of its timeslices"),
    number(
        "jobs",
        "jobs",
        "number of jobs (pieces of work) released after the warm-up that are done, or whose \
         deadline has passed",
    ),
    number("jobs_late", "late", "number of jobs not done by their deadline, done later or never"),
    number("jobs_done", "jobs done", "number of jobs done, also of those released in the warm-up"),
    number("moved_bytes", "Mbit/s", "data that reached it, or that it sent and that arrived"),
    spread(
        "job_lateness",
        "late by",
        "tardiness of late jobs: time from the deadline until they were done, or until the end",
    ),
    spread(
        "response",
        "response",
        "time from the release of a job, or the arrival of a request, to its end",
    ),
    number("response_mean_ns", "", "mean of the response times"),
    number("response_worst_tenth_ns", "", "mean of the longest tenth of the response times"),
];

const CPU: &[Term] = &[
    text("cpu", "CPU", "name"),
    number("busy_ns", "busy %", "time in which vCPUs of the run ran on it"),
    number(
        "due_ns",
        "owed %",
        "busy time to which the vCPUs were entitled: reserved, or their turn",
    ),
    number("spare_ns", "unclaimed %", "busy time that was slack"),
    number(
        "idle_ns",
        "idle %",
        "time in which no vCPU of the run ran on it and no overhead was paid; live `not ours %`: \
         other programs may have run",
    ),
    number(
        "program_ns",
        "programs %",
        "simulated: time in which vCPUs ran their programs, useful, spinning or slowed. With \
         `overhead` and `idle` it amounts to the measured time",
    ),
    number(
        "others_ppm",
        "others %",
        "live: part used by other programs, the kernel and interrupts",
    ),
    number(
        "stolen_ppm",
        "stolen %",
        "live, in a VM: part that the hypervisor below gave to other VMs",
    ),
    number("unused_ppm", "unused %", "live: part in which the kernel counted the CPU as idle"),
    number(
        "overhead_ns",
        "overhead",
        "simulated: time spent on the kinds below, paid by vCPUs or while idle; live, CPU time of \
         the dispatcher",
    ),
    number("switch_overhead_ns", "switch", "time for switches to vCPUs"),
    number("migration_overhead_ns", "migration", "time for migrations of vCPUs to this CPU"),
    number("refill_overhead_ns", "refill", "time lost to cold caches of vCPUs"),
    number("tick_overhead_ns", "tick", "time for ticks"),
    number("interrupt_overhead_ns", "interrupt", "time for interrupts of devices and other CPUs"),
    number("balancing_overhead_ns", "balancing", "time for calls of the balancer"),
    number(
        "switches",
        "switches",
        "number of times a vCPU was put on it after the warm-up, from another vCPU or from idle",
    ),
];

const TASK: &[Term] = &[
    text("domain", "", "name of its domain"),
    text("task", "task", "number of the first task of this name in its domain, counted from 0"),
    number("jobs", "jobs", "number of its jobs, as of a vCPU"),
    number("jobs_late", "late", "number of its jobs not done by their deadline"),
    number(
        "jobs_done",
        "jobs done",
        "number of its jobs done, also of those released in the warm-up",
    ),
    spread("job_lateness", "late by", "tardiness of its late jobs"),
    spread(
        "response",
        "response",
        "time from the release of its job, or the arrival of a request, to the end",
    ),
    number("response_mean_ns", "", "mean of its response times"),
];

const CLIENT: &[Term] = &[
    text("client", "client", "number of the client, counted from 0, as `client0`"),
    text("domain", "", "domain that it talks to"),
    number("answered", "answered", "number of its requests that were answered"),
    spread(
        "response",
        "response",
        "time from a request to its answer, of the requests sent after the warm-up",
    ),
    number("response_mean_ns", "", "mean of its response times"),
];

const RUN: &[Term] = &[
    text("title", "", "title of the scenario"),
    text("machine", "", "`sim` or `live`"),
    text("policy", "", "policy, with the parameters that differ from their defaults"),
    number("seed", "", "seed of the random draws"),
    number("length_ns", "", "measured time: the run without its warm-up"),
    text("knows_sleep", "", "true if the host saw which vCPUs were blocked"),
    text("knows_stretches", "", "true if the host saw every run interval"),
    number(
        "declined",
        "changes that could not be admitted",
        "number of changes of shares that the policy refused",
    ),
    number(
        "refused",
        "orders that the machine refused",
        "number of scheduling decisions that the host could not carry out",
    ),
    spread(
        "timer_lateness",
        "timers rang late by",
        "delay of timers after the time for which they were set",
    ),
    spread(
        "change_delay",
        "changes took effect after",
        "time from when a change was due until it took effect",
    ),
];

const XENMON: &[Term] = &[
    text("domain", "domain", "name"),
    number("gotten_ns", "", "CPU time received"),
    number("gotten_ns_per_s", "gotten", "CPU time received per second"),
    number("gotten_ppm", "gotten", "CPU time received, as a part of a CPU"),
    number("gotten_per_execution_ns", "gotten", "CPU time received per execution"),
    number("allocated_ns", "", "sum of the timeslices granted to its executions"),
    number(
        "allocated_per_execution_ns",
        "allocated",
        "mean timeslice of the executions that had one",
    ),
    number("blocked_ns", "", "time it was blocked"),
    number("blocked_ns_per_s", "blocked", "time it was blocked, per second"),
    number("blocked_ppm", "blocked", "time it was blocked, as a part of the time"),
    number("blocked_per_io_ns", "blocked", "time it was blocked, per I/O"),
    number("waited_ns", "", "time it was runnable and did not run"),
    number("waited_ns_per_s", "waited", "time it was runnable and did not run, per second"),
    number("waited_ppm", "waited", "time it was runnable and did not run, as a part of the time"),
    number(
        "waited_per_execution_ns",
        "waited",
        "time it was runnable and did not run, per execution",
    ),
    number("executions", "", "number of times it was put on a CPU"),
    number(
        "executions_milli_per_s",
        "executions",
        "number of executions per second, in thousandths",
    ),
    number("io", "", "pages of data exchanged with the driver domain"),
    number("io_milli_per_s", "I/O", "pages exchanged per second, in thousandths"),
    number("io_milli_per_execution", "I/O", "pages exchanged per execution, in thousandths"),
];

impl Term {
    /// Returns the unit. `None` for a text or a flag, to which no claim can refer.
    #[must_use]
    pub fn unit(&self) -> Option<Unit> {
        match self.kind {
            Kind::Text => None,
            Kind::Number => Some(Unit::of(self.field)),
            Kind::Spread => Some(Unit::Time),
        }
    }

    /// Returns true if the term stands for the five fields of a distribution.
    #[must_use]
    pub fn is_spread(&self) -> bool {
        self.kind == Kind::Spread
    }

    /// Returns the names of the fields that the term stands for.
    #[must_use]
    pub fn fields(&self) -> Vec<String> {
        match self.is_spread() {
            true => SPREAD.iter().map(|end| format!("{}{end}", self.field)).collect(),
            false => vec![self.field.to_owned()],
        }
    }

    /// Returns the name in claims: that of the field in words, without its unit.
    #[must_use]
    pub fn claimed_as(&self) -> String {
        crate::lookup::words(self.field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Field, Meter, XenMon};
    use slackline_trace::{Header, Knowledge, Record, Sink, VcpuName};
    use slackline_units::{ClientId, DomId, Span, TaskId, Time, VcpuId};

    /// Returns every field of a run with one vCPU.
    fn fields() -> Vec<(&'static str, Vec<Field>)> {
        let summary = made(Meter::new).view().expect("every vCPU is named");
        let xenmon = made(XenMon::new).finish().expect("every vCPU is named");
        vec![
            ("run", summary.fields()),
            ("vcpu", summary.vcpu_fields().remove(0)),
            ("cpu", summary.cpu_fields().remove(0)),
            ("task", summary.task_fields().remove(0)),
            ("client", summary.client_fields().remove(0)),
            ("domain", xenmon.domain_fields(&xenmon.domains[0])),
        ]
    }

    fn made<S: Sink>(sink: impl Fn(&Header) -> S) -> S {
        let header = Header {
            title: String::new(),
            machine: String::new(),
            policy: String::new(),
            parameters: String::new(),
            seed: 1,
            cpus: 1,
            groups: Vec::new(),
            dispatch: Span::ZERO,
            warmup: Span::ZERO,
            knows: Knowledge::ALL,
            scenario: String::new(),
        };
        let mut meter = sink(&header);
        let (at, vcpu) = (Time::START, VcpuId::new(0, DomId::new(0), 0));
        meter.named(&VcpuName { at, vcpu, name: "web".into(), domain: "web".into() });
        meter.record(&Record::Joined { at, vcpu });
        let (task, client) = (Some(TaskId::new(0)), Some(ClientId::new(0)));
        let deadline = Time::NEVER;
        meter.record(&Record::Job { vcpu, task, client, released: at, deadline, done: at });
        meter
    }

    #[test]
    fn every_field_has_a_meaning_and_every_meaning_a_field() {
        for ((what, fields), terms) in
            fields().into_iter().zip([RUN, VCPU, CPU, TASK, CLIENT, XENMON])
        {
            let known: Vec<String> = terms.iter().flat_map(Term::fields).collect();
            let there: Vec<String> = fields.iter().map(|field| field.0.to_owned()).collect();
            assert_eq!(known, there, "of the {what}");
        }
    }

    #[test]
    fn every_number_can_be_claimed_in_its_unit() {
        let summary = made(Meter::new).view().expect("every vCPU is named");
        for term in [VCPU, CPU, RUN].concat() {
            let Some(unit) = term.unit() else { continue };
            let of = |end: &str| match term.is_spread() {
                true => format!("{} {end}", term.claimed_as()),
                false => term.claimed_as(),
            };
            for end in ["p50", "p90", "p99", "worst"] {
                assert_eq!(summary.unit(&of(end), None), Ok(unit), "{}", term.field);
            }
            let count = if term.is_spread() { Unit::Things } else { unit };
            assert_eq!(summary.unit(&of("count"), None), Ok(count), "{}", term.field);
        }
    }
}
