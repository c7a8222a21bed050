//! What every metric means, for people: one list for tables, JSON, claims and help.

use crate::Unit;

/// What a field of a summary means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The field, as JSON has it. A distribution has one entry: the field without `_p50_ns` and so
    /// on.
    pub field: &'static str,
    /// What tables call it; empty if they do not show it.
    pub heading: &'static str,
    /// What it means, and in which unit where the field's name does not say.
    pub says: &'static str,
    kind: Kind,
}

/// What kind of thing a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A text or a flag, which no claim can be about.
    Text,
    /// A number, in the unit that ends the field's name.
    Number,
    /// A distribution: how many, and four times.
    Spread,
}

/// The terms of one kind of thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glossary {
    /// In words.
    pub of: &'static str,
    /// In the order of the fields.
    pub terms: &'static [Term],
    /// Whether claims can be about them.
    pub are_claimed: bool,
}

/// How the fields of a distribution end.
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

/// All of them.
pub const GLOSSARY: &[Glossary] = &[
    Glossary {
        of: "a vCPU, a domain (all of its vCPUs), or the whole run",
        terms: VCPU,
        are_claimed: true,
    },
    Glossary { of: "a CPU (`cpu0`), or all of them", terms: CPU, are_claimed: true },
    Glossary { of: "the whole run", terms: RUN, are_claimed: true },
    Glossary {
        of: "a domain, with --xenmon (XenMon's own words)",
        terms: XENMON,
        are_claimed: false,
    },
];

const VCPU: &[Term] = &[
    text("name", "vCPU", "the domain's name, and the vCPU's number where it has several"),
    text("vcpu", "", "its id: slot, domain and number"),
    text("exact", "", "whether it is to get its promise and no more; else tables show a +"),
    number("promised_slice_ns", "promised", "CPU time promised in every period"),
    number("promised_period_ns", "promised", "how long a period is"),
    number(
        "promised_ppm",
        "promised",
        "slice/period in parts of a CPU, on average over the time that `delivered` is of",
    ),
    number("delivered_ns", "", "CPU time it had (in claims `delivered time`)"),
    number(
        "delivered_ppm",
        "delivered %",
        "CPU time it had, in parts of one CPU: over the whole periods of its promise, as the \
         error, so that the two agree; over all the time it was there without a promise or a whole \
         period, and where its promise changed",
    ),
    number("present_ns", "", "how long it was there while it was measured"),
    number(
        "work_ppm",
        "work %",
        "useful work, in parts of what one CPU does at full speed in the time it was there: its \
         CPU time less `overhead`, `slowed` and `spun`; shown where there is any of these, and not \
         known live",
    ),
    number("work_ns", "", "the same as CPU time at full speed (in claims `work time`)"),
    number(
        "slowed_ns",
        "",
        "CPU time lost to it because others slowed its CPU: the other threads of the core (`smt` \
         of [host]), or all who share the way to memory (`bus`)",
    ),
    number(
        "spun_ns",
        "spun %",
        "CPU time that it used waiting for a spin lock, in tables in parts of what it had; counted \
         when it gets the lock, shown where anybody did, and not known live",
    ),
    number(
        "overhead_ns",
        "overhead, %",
        "simulated: CPU time that it paid for overhead, in tables in parts of the time it was \
         there; all of the kinds below",
    ),
    number("switch_overhead_ns", "switch", "switching to it (`switch` of [host])"),
    number("migration_overhead_ns", "migration", "its migrations to other CPUs (`migrate`)"),
    number(
        "refill_overhead_ns",
        "refill",
        "its cold caches after others ran (`dispatch` and `cache` of the domain)",
    ),
    number("tick_overhead_ns", "tick", "ticks of its CPU (`tick_cost`)"),
    number("interrupt_overhead_ns", "interrupt", "interrupts on its CPU (`interrupt`, `ipi`)"),
    number("balancing_overhead_ns", "balancing", "calls of the balancer (`balancing`)"),
    number(
        "second_least_ppm",
        "",
        "the least CPU time that it had in a whole second, from the end of the warm-up on",
    ),
    number("second_most_ppm", "", "the most that it had in one of them"),
    number("ten_seconds_least_ppm", "", "the least in whole ten seconds"),
    number("ten_seconds_most_ppm", "", "the most in one of those"),
    number(
        "error_ppm",
        "error %",
        "what it had against its promise over those periods: (delivered - promised)/promised; \
         less than its promise is no error of one that slept, and more none of one that is not \
         exact",
    ),
    number(
        "second_error_p99_ppm",
        "error in 1 s, %: p99",
        "the same of single seconds, whatever its sign: 99 of 100 are within this",
    ),
    number("second_error_worst_ppm", "error in 1 s, %: worst", "the worst of those seconds"),
    number("seconds", "", "how many such seconds were judged"),
    number(
        "deadlines",
        "deadlines",
        "periods at whose end it could be judged: it was awake or had had its slice",
    ),
    number("misses", "missed", "those of them at whose end it wanted its slice and had not had it"),
    spread(
        "miss_time",
        "late by",
        "of missed deadlines: how long after the period's end the slice was whole",
    ),
    number(
        "miss_time_p50_of_slice_ppm",
        "",
        "the same in parts of the slice: half are within this",
    ),
    number("miss_time_p99_of_slice_ppm", "", "99 of 100 are within this"),
    number("miss_time_worst_of_slice_ppm", "late by: % of slice", "the worst"),
    spread(
        "wake_to_run",
        "wake to run",
        "from waking to running; who is awake as it joins, at the start of the run or later, has \
         not woken",
    ),
    number("switches", "switches", "how often it was put on a CPU"),
    number("migrations", "migrations", "how often on another CPU than the last time"),
    number("waiting_ns", "waiting s", "how long it was awake and did not run"),
    number("wait_worst_ns", "", "the longest that it was awake and did not run, without a break"),
    number("asleep_ns", "", "how long it slept"),
    number("overrun_ns", "", "CPU time it had beyond the end of its turns"),
    number(
        "jobs",
        "jobs",
        "pieces of work that were released, and that were done or whose deadline has passed",
    ),
    number("jobs_late", "late", "those that were not done by their deadline, done later or never"),
    number("jobs_done", "jobs done", "pieces of work that were done, with a deadline or without"),
    number("moved_bytes", "Mbit/s", "data that it moved"),
    spread(
        "job_lateness",
        "late by",
        "of late jobs: how long after the deadline they were done; never done, until the end",
    ),
    spread("response", "response", "from a job's release, or a request's arrival, to its end"),
    number("response_mean_ns", "", "the same on average"),
    number("response_worst_tenth_ns", "", "the longest tenth of them on average"),
];

const CPU: &[Term] = &[
    text("cpu", "CPU", "which"),
    number("busy_ns", "busy %", "how long vCPUs of this scenario ran on it"),
    number("due_ns", "owed %", "how much of that was owed to whoever ran: promised, or its turn"),
    number("spare_ns", "unclaimed %", "how much of that was owed to nobody, and given away"),
    number(
        "idle_ns",
        "idle %",
        "how long none of its vCPUs ran and no overhead was paid; live `not ours %`: others may \
         have",
    ),
    number(
        "program_ns",
        "programs %",
        "simulated: how long vCPUs ran their programs, useful, spinning or slowed; this, \
         `overhead` and `idle` amount to the time that was measured",
    ),
    number(
        "others_ppm",
        "others %",
        "live: what others had of it, in parts of the CPU: other programs, the kernel, interrupts",
    ),
    number(
        "stolen_ppm",
        "stolen %",
        "live, in a virtual machine: what the hypervisor below gave to others",
    ),
    number(
        "unused_ppm",
        "unused %",
        "live: how long nobody at all ran there, by the kernel's count",
    ),
    number(
        "overhead_ns",
        "overhead",
        "simulated: what the CPU spent on the kinds below, paid by vCPUs or while idle; live, the \
         dispatcher's own CPU time",
    ),
    number("switch_overhead_ns", "switch", "switching to vCPUs"),
    number("migration_overhead_ns", "migration", "migrations of vCPUs to this CPU"),
    number("refill_overhead_ns", "refill", "cold caches of vCPUs"),
    number("tick_overhead_ns", "tick", "ticks"),
    number("interrupt_overhead_ns", "interrupt", "interrupts of devices and of other CPUs"),
    number("balancing_overhead_ns", "balancing", "calls of the balancer"),
    number("switches", "switches", "how often somebody else was put on it"),
];

const RUN: &[Term] = &[
    text("title", "", "the scenario's"),
    text("machine", "", "`sim` or `live`"),
    text("policy", "", "who decided, with the parameters that are not defaults"),
    number("seed", "", "what the draws started from"),
    number("length_ns", "", "how long was measured: the run without its warm-up"),
    text("knows_sleep", "", "whether the machine saw who slept"),
    text("knows_stretches", "", "whether the machine saw every stretch that somebody ran"),
    number(
        "declined",
        "changes that could not be admitted",
        "changes of shares that the policy refused",
    ),
    number("refused", "orders that the machine refused", "orders that could not be carried out"),
    spread("timer_lateness", "timers rang late by", "how much later than asked for alarms rang"),
    spread(
        "change_delay",
        "changes took effect after",
        "from when a change was due to when it held",
    ),
];

const XENMON: &[Term] = &[
    text("domain", "domain", "which"),
    number("gotten_ns", "", "CPU time it had"),
    number("gotten_ns_per_s", "gotten", "the same in each second"),
    number("gotten_ppm", "gotten", "the same in parts of a CPU"),
    number("gotten_per_execution_ns", "gotten", "the same in each execution"),
    number("allocated_ns", "", "CPU time that was set for its executions to end after"),
    number(
        "allocated_per_execution_ns",
        "allocated",
        "the same in each execution that had such an end",
    ),
    number("blocked_ns", "", "how long it slept"),
    number("blocked_ns_per_s", "blocked", "the same in each second"),
    number("blocked_ppm", "blocked", "the same in parts of the time"),
    number("blocked_per_io_ns", "blocked", "the same for each I/O"),
    number("waited_ns", "", "how long it was awake and did not run"),
    number("waited_ns_per_s", "waited", "the same in each second"),
    number("waited_ppm", "waited", "the same in parts of the time"),
    number("waited_per_execution_ns", "waited", "the same before each execution"),
    number("executions", "", "how often it was put on a CPU"),
    number("executions_milli_per_s", "executions", "the same in each second, in thousandths"),
    number("io", "", "pages of data that it exchanged with the driver domain"),
    number("io_milli_per_s", "I/O", "the same in each second, in thousandths"),
    number("io_milli_per_execution", "I/O", "the same in each execution, in thousandths"),
];

impl Term {
    /// What it is measured in; none of a text or a flag, which no claim can be about.
    #[must_use]
    pub fn unit(&self) -> Option<Unit> {
        match self.kind {
            Kind::Text => None,
            Kind::Number => Some(Unit::of(self.field)),
            Kind::Spread => Some(Unit::Time),
        }
    }

    /// Whether it stands for the five fields of a distribution.
    #[must_use]
    pub fn is_spread(&self) -> bool {
        self.kind == Kind::Spread
    }

    /// The fields that it stands for.
    #[must_use]
    pub fn fields(&self) -> Vec<String> {
        match self.is_spread() {
            true => SPREAD.iter().map(|end| format!("{}{end}", self.field)).collect(),
            false => vec![self.field.to_owned()],
        }
    }

    /// The name that claims know it by: the field in words, without its unit.
    #[must_use]
    pub fn claimed_as(&self) -> String {
        crate::lookup::words(self.field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Field, Meter, XenMon};
    use slackline_trace::{Header, Knowledge, Named, Record, Sink};
    use slackline_units::{DomId, Span, Time, VcpuId};

    /// Every field of a run in which somebody was.
    fn fields() -> Vec<(&'static str, Vec<Field>)> {
        let summary = made(Meter::new).view().expect("everybody has a name");
        let xenmon = made(XenMon::new).finish().expect("everybody has a name");
        vec![
            ("run", summary.fields()),
            ("vcpu", summary.vcpu_fields().remove(0)),
            ("cpu", summary.cpu_fields().remove(0)),
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
        meter.named(&Named { at, vcpu, name: "web".into(), domain: "web".into() });
        meter.record(&Record::Joined { at, vcpu });
        meter
    }

    #[test]
    fn every_field_has_a_meaning_and_every_meaning_a_field() {
        for ((what, fields), terms) in fields().into_iter().zip([RUN, VCPU, CPU, XENMON]) {
            let known: Vec<String> = terms.iter().flat_map(Term::fields).collect();
            let there: Vec<String> = fields.iter().map(|field| field.0.to_owned()).collect();
            assert_eq!(known, there, "of the {what}");
        }
    }

    #[test]
    fn every_number_can_be_claimed_in_its_unit() {
        let summary = made(Meter::new).view().expect("everybody has a name");
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
