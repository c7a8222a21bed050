//! Meaning of every metric, for users. Tables, JSON, claims and help share this list.

use crate::Unit;

/// Meaning of a field of a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Name of the field in JSON. For a distribution, it is the common start of the distribution's
    /// field names: `wake_to_run` stands for `wake_to_run_p50_ns` and others.
    pub field: &'static str,
    /// Heading of the metric in tables. Empty if tables do not show the metric.
    pub heading: &'static str,
    /// Description of the metric, with the unit if the name of the field does not end in a unit.
    pub says: &'static str,
    kind: Kind,
}

/// Kind of value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Text or flag. No claim can refer to it.
    Text,
    /// Number in the unit in which the name of the field ends.
    Number,
    /// Distribution of lengths of time: the count and four lengths of time.
    Spread,
}

/// Metrics of one kind of subject: run, vCPU, task or CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glossary {
    /// Description of the subjects that have these metrics.
    pub of: &'static str,
    /// Metrics in the order of the fields in JSON.
    pub terms: &'static [Term],
    /// True if claims can refer to these metrics.
    pub are_claimed: bool,
}

/// Endings of the five field names of a distribution.
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

/// All metrics, grouped by the kind of subject.
pub const GLOSSARY: &[Glossary] = &[
    Glossary {
        of: "a vCPU, a domain (all of its vCPUs), or the whole run",
        terms: VCPU,
        are_claimed: true,
    },
    Glossary { of: "a CPU (`cpu0`), or all CPUs", terms: CPU, are_claimed: true },
    Glossary { of: "the whole run", terms: RUN, are_claimed: true },
    Glossary {
        of: "a named task of a domain (`web/0`), with the client requests that it serves",
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
    text(
        "name",
        "vCPU",
        "name of the domain, and the number of the vCPU if the domain has several vCPUs",
    ),
    text("vcpu", "", "id of the vCPU: slot, domain and number"),
    text("exact", "", "true if the reservation is a hard limit. If false, tables mark it with a +"),
    number("promised_slice_ns", "promised", "CPU time reserved in every period"),
    number("promised_period_ns", "promised", "length of a period of the reservation"),
    number(
        "promised_ppm",
        "promised",
        "slice/period of the reservation as a part of a CPU, averaged over the time for which \
         `delivered` is measured",
    ),
    number("delivered_ns", "", "CPU time that the vCPU received (in claims `delivered time`)"),
    number(
        "delivered_ppm",
        "delivered %",
        "CPU time that the vCPU received, as a part of one CPU. `delivered` is measured over \
         all complete periods of the reservation. Without a reservation or a complete period, or \
         if the reservation changed, it is measured over all the time for which the vCPU was \
         present",
    ),
    number("present_ns", "", "measured time from the join of the vCPU until it leaves"),
    number(
        "work_ppm",
        "work %",
        "useful work of the vCPU: CPU time less `overhead`, `slowed` and `spun`, as a part of what \
         one CPU at full speed does in the time for which the vCPU is present. Tables show `work` \
         only if `overhead`, `slowed` or `spun` is not zero. Live runs cannot measure `work`",
    ),
    number(
        "work_ns",
        "",
        "useful work of the vCPU, as CPU time at full speed (in claims `work time`)",
    ),
    number(
        "slowed_ns",
        "",
        "CPU time lost because other CPUs slowed the CPU of the vCPU: other threads of the core \
         (`smt` of [host]), or all CPUs that share the memory bus (`bus`)",
    ),
    number(
        "spun_ns",
        "spun %",
        "CPU time that the vCPU spent waiting for a spin lock. Tables show it as a part of the CPU \
         time received. It is counted when the vCPU gets the lock. Live runs cannot measure it",
    ),
    number(
        "overhead_ns",
        "overhead, %",
        "simulated: CPU time that the vCPU paid for overhead: `switch`, `migration`, `refill`, \
         `tick`, `interrupt` and `balancing`. Tables show the overhead as a part of the time for \
         which the vCPU was present",
    ),
    number(
        "switch_overhead_ns",
        "switch",
        "overhead of context switches to the vCPU (`switch` of [host])",
    ),
    number(
        "migration_overhead_ns",
        "migration",
        "overhead of migrations of the vCPU (`migrate` of [host])",
    ),
    number(
        "refill_overhead_ns",
        "refill",
        "overhead of cold caches after other vCPUs ran (`dispatch` and `cache` of the domain)",
    ),
    number("tick_overhead_ns", "tick", "overhead of ticks of the CPU (`tick_cost` of [host])"),
    number(
        "interrupt_overhead_ns",
        "interrupt",
        "overhead of interrupts (`interrupt` of devices, `ipi` of [host])",
    ),
    number(
        "balancing_overhead_ns",
        "balancing",
        "overhead of calls of the balancer (`balancing` of [host])",
    ),
    number(
        "second_least_ppm",
        "",
        "least CPU time that the vCPU received in any complete second, as a part of a CPU. Seconds \
         are counted from the end of the warm-up",
    ),
    number(
        "second_most_ppm",
        "",
        "most CPU time that the vCPU received in any complete second, as a part of a CPU",
    ),
    number(
        "ten_seconds_least_ppm",
        "",
        "least CPU time that the vCPU received in any complete interval of ten seconds, as a part \
         of a CPU",
    ),
    number(
        "ten_seconds_most_ppm",
        "",
        "most CPU time that the vCPU received in any complete interval of ten seconds, as a part \
         of a CPU",
    ),
    number(
        "error_ppm",
        "error %",
        "(delivered - promised)/promised, over all complete periods of the reservation. Too \
         little CPU time is no error if the vCPU was blocked. Too much CPU time is an error only \
         with a hard limit",
    ),
    number(
        "second_error_p99_ppm",
        "error in 1 s, %: p99",
        "99th percentile of the `error` of single seconds, without sign",
    ),
    number(
        "second_error_worst_ppm",
        "error in 1 s, %: worst",
        "largest `error` of a single second, without sign",
    ),
    number("seconds", "", "number of single seconds from which `second error` was computed"),
    number(
        "deadlines",
        "deadlines",
        "number of periods judged: those in which the vCPU stayed runnable until its slice was \
         complete, or until the end of the period",
    ),
    number(
        "misses",
        "missed",
        "number of deadlines missed: judged periods that ended before the slice was complete",
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
        "scheduling latency: time from a wake-up until the vCPU runs. Comparisons show the number \
         of wake-ups as `n of wakes`. A wake-up counts if it was after the warm-up and the vCPU \
         then ran. If the vCPU still waits at the end of the run, its wait so far counts. A \
         wake-up does not count if the vCPU blocked again without having run. A vCPU that is \
         runnable when it joins has no wake-up at this time",
    ),
    number(
        "switches",
        "switches",
        "number of times the vCPU was put on a CPU after the warm-up. If the vCPU continues on its \
         CPU after the CPU was idle, this counts as a switch. If the vCPU is picked again at the \
         end of its timeslice, this does not count",
    ),
    number(
        "migrations",
        "migrations",
        "number of times the vCPU was put on another CPU than the one where it ran last",
    ),
    number(
        "boosts",
        "boosts",
        "number of boosts of the vCPU: wake-ups after which it ran before all vCPUs without a \
         boost (`credit`, `gaps`)",
    ),
    number(
        "false_boosts",
        "false boosts",
        "number of boosts that ended while the vCPU still computed. A boost is of use only if the \
         vCPU blocks before the boost ends",
    ),
    number("boosted_ns", "boosted s", "time for which the vCPU ran with a boost"),
    number(
        "waiting_ns",
        "waiting s",
        "time for which the vCPU was runnable and did not run. In live runs, the time of `stopped` \
         is not included",
    ),
    number(
        "wait_worst_ns",
        "",
        "longest time without a break for which the vCPU was runnable and did not run",
    ),
    number(
        "stopped_ns",
        "",
        "live: time for which the vCPU was runnable but stopped, because its budget was exhausted \
         (throttled) or it had escaped its limit",
    ),
    number("asleep_ns", "", "time for which the vCPU was blocked"),
    number("overrun_ns", "", "CPU time that the vCPU used beyond the end of its timeslices"),
    number(
        "jobs",
        "jobs",
        "number of jobs (pieces of work) released after the warm-up that are done, or whose \
         deadline has passed",
    ),
    number(
        "jobs_late",
        "late",
        "number of jobs not done by their deadline, including jobs that were never done",
    ),
    number("jobs_done", "jobs done", "number of jobs done, including jobs released in the warm-up"),
    number("moved_bytes", "Mbit/s", "data that the guest or its peers received"),
    spread(
        "job_lateness",
        "late by",
        "tardiness of late jobs: time from the deadline until the job was done, or until the end \
         of the run",
    ),
    spread(
        "response",
        "response",
        "time from the release of a job, or the arrival of a request, until it is done",
    ),
    number("response_mean_ns", "", "mean of the response times"),
    number("response_worst_tenth_ns", "", "mean of the longest tenth of the response times"),
];

const CPU: &[Term] = &[
    text("cpu", "CPU", "name of the CPU"),
    number("busy_ns", "busy %", "time in which vCPUs of the run ran on the CPU"),
    number(
        "due_ns",
        "owed %",
        "busy time to which vCPUs on the CPU were entitled by their reservation, or by their \
         timeslice if they had no reservation",
    ),
    number("spare_ns", "unclaimed %", "time in which vCPUs on the CPU ran in slack"),
    number(
        "idle_ns",
        "idle %",
        "time in which no vCPU of the run ran on the CPU and no overhead was paid. Live tables \
         call it `not ours %`, because other programs may have run",
    ),
    number(
        "program_ns",
        "programs %",
        "simulated: time in which vCPUs ran their programs, useful, spinning or slowed. The sum \
         of `program`, `overhead` and `idle` is the measured time",
    ),
    number(
        "others_ppm",
        "others %",
        "live: part of the measured time in which other programs, the kernel and interrupts used \
         the CPU",
    ),
    number(
        "stolen_ppm",
        "stolen %",
        "live, if the host is a VM: part of the measured time in which the hypervisor below the \
         host gave the CPU to other VMs",
    ),
    number(
        "unused_ppm",
        "unused %",
        "live: part of the measured time in which the kernel counted the CPU as idle",
    ),
    number(
        "overhead_ns",
        "overhead",
        "simulated: time of the CPU for `switch`, `migration`, `refill`, `tick`, `interrupt` and \
         `balancing`, paid by vCPUs or while the CPU was idle. Live: CPU time of the dispatcher",
    ),
    number("switch_overhead_ns", "switch", "overhead of context switches to vCPUs on the CPU"),
    number("migration_overhead_ns", "migration", "overhead of migrations of vCPUs to the CPU"),
    number("refill_overhead_ns", "refill", "overhead of cold caches of vCPUs on the CPU"),
    number("tick_overhead_ns", "tick", "overhead of ticks of the CPU"),
    number(
        "interrupt_overhead_ns",
        "interrupt",
        "overhead of interrupts by devices and other CPUs on the CPU",
    ),
    number("balancing_overhead_ns", "balancing", "overhead of calls of the balancer on the CPU"),
    number(
        "switches",
        "switches",
        "number of times, after the warm-up, that a vCPU was put on the CPU in place of another \
         vCPU or of idle time",
    ),
];

const TASK: &[Term] = &[
    text("domain", "", "name of the task's domain"),
    text("task", "task", "number of the first task of this name in the domain, counted from 0"),
    number(
        "jobs",
        "jobs",
        "number of jobs of the task released after the warm-up that are done, or whose deadline \
         has passed",
    ),
    number("jobs_late", "late", "number of jobs of the task not done by their deadline"),
    number(
        "jobs_done",
        "jobs done",
        "number of jobs of the task that are done, including those released in the warm-up",
    ),
    spread("job_lateness", "late by", "tardiness of late jobs of the task"),
    spread(
        "response",
        "response",
        "time from the release of a job of the task, or the arrival of a request, until it is \
         done",
    ),
    number("response_mean_ns", "", "mean of the response times of the task"),
];

const CLIENT: &[Term] = &[
    text("client", "client", "number of the client, counted from 0, as `client0`"),
    text("domain", "", "domain to which the client sends requests"),
    number("answered", "answered", "number of the client's requests that were answered"),
    spread(
        "response",
        "response",
        "time from a request of the client to its answer. Requests in the warm-up do not count",
    ),
    number("response_mean_ns", "", "mean of the response times of the client's requests"),
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
        "number of changes of shares that the policy refused because the CPUs lacked the capacity",
    ),
    number(
        "refused",
        "scheduling decisions that the host refused",
        "number of scheduling decisions of the policy that the host could not carry out",
    ),
    spread(
        "timer_lateness",
        "timers expired late by",
        "delay of timers after the time for which they were set",
    ),
    spread(
        "change_delay",
        "changes took effect after",
        "time from the moment at which a change was due until the change took effect",
    ),
];

const XENMON: &[Term] = &[
    text("domain", "domain", "name of the domain"),
    number("gotten_ns", "", "CPU time received by the domain"),
    number("gotten_ns_per_s", "gotten", "CPU time received by the domain per second"),
    number("gotten_ppm", "gotten", "CPU time received by the domain, as a part of a CPU"),
    number(
        "gotten_per_execution_ns",
        "gotten",
        "CPU time received by the domain per execution (each time it is put on a CPU)",
    ),
    number("allocated_ns", "", "sum of the timeslices granted to the domain's executions"),
    number(
        "allocated_per_execution_ns",
        "allocated",
        "mean timeslice of the domain's executions that had a timeslice",
    ),
    number("blocked_ns", "", "time for which the domain was blocked"),
    number("blocked_ns_per_s", "blocked", "time for which the domain was blocked, per second"),
    number("blocked_ppm", "blocked", "part of the measured time in which the domain was blocked"),
    number("blocked_per_io_ns", "blocked", "time for which the domain was blocked, per I/O"),
    number("waited_ns", "", "time for which the domain was runnable and did not run"),
    number(
        "waited_ns_per_s",
        "waited",
        "time for which the domain was runnable and did not run, per second",
    ),
    number(
        "waited_ppm",
        "waited",
        "part of the measured time in which the domain was runnable and did not run",
    ),
    number(
        "waited_per_execution_ns",
        "waited",
        "time for which the domain was runnable and did not run, per execution",
    ),
    number("executions", "", "number of times the domain was put on a CPU"),
    number(
        "executions_milli_per_s",
        "executions",
        "number of times per second the domain was put on a CPU, in thousandths",
    ),
    number("io", "", "pages of data exchanged with the driver domain"),
    number(
        "io_milli_per_s",
        "I/O",
        "pages of data exchanged with the driver domain per second, in thousandths",
    ),
    number(
        "io_milli_per_execution",
        "I/O",
        "pages of data exchanged with the driver domain per execution, in thousandths",
    ),
];

impl Term {
    /// Returns the unit of the metric. `None` if the metric is a text or a flag, to which no claim
    /// can refer.
    #[must_use]
    pub fn unit(&self) -> Option<Unit> {
        match self.kind {
            Kind::Text => None,
            Kind::Number => Some(Unit::of(self.field)),
            Kind::Spread => Some(Unit::Time),
        }
    }

    /// Returns true if the metric is a distribution, which has five fields.
    #[must_use]
    pub fn is_spread(&self) -> bool {
        self.kind == Kind::Spread
    }

    /// Returns the names of all JSON fields of the metric.
    #[must_use]
    pub fn fields(&self) -> Vec<String> {
        match self.is_spread() {
            true => SPREAD.iter().map(|end| format!("{}{end}", self.field)).collect(),
            false => vec![self.field.to_owned()],
        }
    }

    /// Returns the name of the metric in claims: the name of its field in words, without the unit.
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
    fn metrics_glossary_lists_exactly_the_fields_of_a_run_summary() {
        for ((what, fields), terms) in
            fields().into_iter().zip([RUN, VCPU, CPU, TASK, CLIENT, XENMON])
        {
            let known: Vec<String> = terms.iter().flat_map(Term::fields).collect();
            let there: Vec<String> = fields.iter().map(|field| field.0.to_owned()).collect();
            assert_eq!(known, there, "of the {what}");
        }
    }

    #[test]
    fn scenario_claims_accept_every_glossary_metric_in_its_unit() {
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
