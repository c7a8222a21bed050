//! Fields of a summary for other programs: a value and a name that ends in the unit.
//!
//! Units: `_ns` nanoseconds, `_ppm` millionths (of one CPU for a share, of the reservation for an
//! error), `_bytes` bytes, no suffix for a count. A name is never removed, and its meaning never
//! changes. New names can be added at any position.

use slackline_trace::OverheadKind;
use slackline_units::Span;

use crate::{
    ClientSummary, CpuSummary, Distribution, OverheadTimes, Summary, TaskSummary, VcpuSummary,
};

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldValue {
    /// Text, such as a name.
    Text(String),
    /// A number that is never negative.
    Count(u64),
    /// A number that can be negative.
    Signed(i64),
    /// Truth value: yes or no.
    Flag(bool),
    /// No value: the value is unknown, or does not exist.
    Missing,
}

/// Name and value of a field.
pub type Field = (&'static str, FieldValue);

/// Names of the five fields of a distribution: count, median, 90th and 99th percentile, worst.
type Names = [&'static str; 5];

/// Expands to the five field names of the distribution that has the given name.
macro_rules! names {
    ($name:literal) => {
        [
            concat!($name, "_count"),
            concat!($name, "_p50_ns"),
            concat!($name, "_p90_ns"),
            concat!($name, "_p99_ns"),
            concat!($name, "_worst_ns"),
        ]
    };
}

const MISS_TIME: Names = names!("miss_time");
const WAKE_TO_RUN: Names = names!("wake_to_run");
const JOB_LATENESS: Names = names!("job_lateness");
const RESPONSE: Names = names!("response");
const TIMER_LATENESS: Names = names!("timer_lateness");
const CHANGE_DELAY: Names = names!("change_delay");

impl Summary {
    /// Returns the fields of the run itself, in this order: `title`, `machine`, `policy`, `seed`,
    /// `length_ns`, `knows_sleep`, `knows_stretches`, `declined`, `refused`, `timer_lateness_*`,
    /// `change_delay_*`.
    ///
    /// `a_*` stands for five fields: `a_count`, `a_p50_ns`, `a_p90_ns`, `a_p99_ns`, `a_worst_ns`.
    #[must_use]
    pub fn fields(&self) -> Vec<Field> {
        let mut fields = vec![
            ("title", FieldValue::Text(self.title.clone())),
            ("machine", FieldValue::Text(self.machine.clone())),
            ("policy", FieldValue::Text(self.policy.clone())),
            ("seed", FieldValue::Count(self.seed)),
            ("length_ns", time(self.length)),
            ("knows_sleep", FieldValue::Flag(self.knows.sleep)),
            ("knows_stretches", FieldValue::Flag(self.knows.stretches)),
            ("declined", FieldValue::Count(self.declined)),
            ("refused", FieldValue::Count(self.refused)),
        ];
        fields.extend(spread(TIMER_LATENESS, self.timer_lateness));
        fields.extend(spread(CHANGE_DELAY, self.changes));
        fields
    }

    /// Returns the fields of all vCPUs of the run, one row per vCPU in order of id.
    /// [`VcpuSummary::fields`] lists them. Numbers that the host cannot count are missing.
    #[must_use]
    pub fn vcpu_fields(&self) -> Vec<Vec<Field>> {
        self.vcpus.iter().map(|vcpu| self.blank(vcpu.fields())).collect()
    }

    /// Returns the fields of all CPUs of the run, one row per CPU. [`CpuSummary::fields`] lists
    /// them. Numbers that the host cannot count are missing.
    #[must_use]
    pub fn cpu_fields(&self) -> Vec<Vec<Field>> {
        self.cpus.iter().map(|cpu| self.blank(cpu.fields())).collect()
    }

    /// Returns the fields of all named tasks of the run, one row per task. [`TaskSummary::fields`]
    /// lists them.
    #[must_use]
    pub fn task_fields(&self) -> Vec<Vec<Field>> {
        self.tasks.iter().map(TaskSummary::fields).collect()
    }

    /// Returns the fields of all clients of the run, one row per client. [`ClientSummary::fields`]
    /// lists them.
    #[must_use]
    pub fn client_fields(&self) -> Vec<Vec<Field>> {
        self.clients.iter().map(ClientSummary::fields).collect()
    }

    fn blank(&self, mut fields: Vec<Field>) -> Vec<Field> {
        if !self.knows.stretches {
            let counted = |field: &&mut Field| matches!(field.0, "switches" | "migrations");
            fields.iter_mut().filter(counted).for_each(|field| field.1 = FieldValue::Missing);
        }
        fields
    }
}

impl VcpuSummary {
    /// Returns the fields of a vCPU, in this order: `name`, `vcpu`, `exact`, `promised_slice_ns`,
    /// `promised_period_ns`, `promised_ppm`, `delivered_ns`, `delivered_ppm`, `present_ns`,
    /// `work_ppm`, `work_ns`, `slowed_ns`, `spun_ns`, `overhead_ns`, `*_overhead_ns`,
    /// `second_least_ppm`, `second_most_ppm`, `ten_seconds_least_ppm`, `ten_seconds_most_ppm`,
    /// `error_ppm`, `second_error_p99_ppm`, `second_error_worst_ppm`, `seconds`, `deadlines`,
    /// `misses`, `miss_time_*`, `miss_time_p50_of_slice_ppm`, `miss_time_p99_of_slice_ppm`,
    /// `miss_time_worst_of_slice_ppm`, `wake_to_run_*`, `switches`, `migrations`, `boosts`,
    /// `false_boosts`, `boosted_ns`, `waiting_ns`, `wait_worst_ns`, `stopped_ns`, `asleep_ns`,
    /// `overrun_ns`, `jobs`, `jobs_late`, `jobs_done`, `moved_bytes`, `job_lateness_*`,
    /// `response_*`, `response_mean_ns`, `response_worst_tenth_ns`.
    ///
    /// `a_*` stands for five fields: `a_count`, `a_p50_ns`, `a_p90_ns`, `a_p99_ns`, `a_worst_ns`.
    /// `*_overhead_ns` stands for one field for each kind of overhead, such as
    /// `switch_overhead_ns`.
    #[must_use]
    pub fn fields(&self) -> Vec<Field> {
        let second = self.second_error;
        let of_slice = self.miss_time_of_slice;
        let mut fields = vec![
            ("name", FieldValue::Text(self.name.clone())),
            ("vcpu", FieldValue::Text(self.id.to_string())),
            ("exact", FieldValue::Flag(self.exact)),
            ("promised_slice_ns", maybe_time(self.promised.map(|promise| promise.slice()))),
            ("promised_period_ns", maybe_time(self.promised.map(|promise| promise.period()))),
            ("promised_ppm", count(self.promised_share_ppm)),
            ("delivered_ns", time(self.delivered)),
            ("delivered_ppm", FieldValue::Count(self.delivered_ppm)),
            ("present_ns", time(self.present)),
            ("work_ppm", count(self.work_ppm())),
            ("work_ns", maybe_time(self.work())),
            ("slowed_ns", maybe_time(self.slowed)),
            ("spun_ns", maybe_time(self.spun)),
            ("overhead_ns", maybe_time(self.overhead.map(|overhead| overhead.total()))),
        ];
        fields.extend(overheads(self.overhead));
        fields.extend([
            ("second_least_ppm", count(self.second.map(|(least, _)| least))),
            ("second_most_ppm", count(self.second.map(|(_, most)| most))),
            ("ten_seconds_least_ppm", count(self.ten_seconds.map(|(least, _)| least))),
            ("ten_seconds_most_ppm", count(self.ten_seconds.map(|(_, most)| most))),
            ("error_ppm", self.error_ppm.map_or(FieldValue::Missing, FieldValue::Signed)),
            ("second_error_p99_ppm", count(second.and_then(|error| error.p99_ppm))),
            ("second_error_worst_ppm", count(second.map(|error| error.worst_ppm))),
            ("seconds", count(second.map(|error| error.seconds))),
            ("deadlines", count(self.deadlines)),
            ("misses", count(self.misses)),
        ]);
        fields.extend(spread(MISS_TIME, self.miss_time));
        fields.extend([
            ("miss_time_p50_of_slice_ppm", count(of_slice.and_then(|part| part.p50_ppm))),
            ("miss_time_p99_of_slice_ppm", count(of_slice.and_then(|part| part.p99_ppm))),
            ("miss_time_worst_of_slice_ppm", count(of_slice.map(|part| part.worst_ppm))),
        ]);
        fields.extend(spread(WAKE_TO_RUN, self.wake_to_run));
        fields.extend([
            ("switches", FieldValue::Count(self.switches)),
            ("migrations", FieldValue::Count(self.migrations)),
            ("boosts", FieldValue::Count(self.boosts)),
            ("false_boosts", FieldValue::Count(self.false_boosts)),
            ("boosted_ns", time(self.boosted)),
            ("waiting_ns", maybe_time(self.waiting)),
            ("wait_worst_ns", maybe_time(self.wait_worst)),
            ("stopped_ns", maybe_time(self.stopped)),
            ("asleep_ns", maybe_time(self.asleep)),
            ("overrun_ns", time(self.overrun)),
            ("jobs", FieldValue::Count(self.jobs)),
            ("jobs_late", FieldValue::Count(self.jobs_late)),
            ("jobs_done", FieldValue::Count(self.jobs_done)),
            ("moved_bytes", FieldValue::Count(self.moved)),
        ]);
        fields.extend(spread(JOB_LATENESS, self.job_lateness));
        fields.extend(spread(RESPONSE, self.response));
        let response = self.response.as_ref();
        fields.extend([
            ("response_mean_ns", maybe_time(response.map(|of| of.mean))),
            ("response_worst_tenth_ns", maybe_time(response.and_then(|of| of.worst_tenth))),
        ]);
        fields
    }
}

impl TaskSummary {
    /// Returns the fields of a named task, in this order: `domain`, `task`, `jobs`, `jobs_late`,
    /// `jobs_done`, `job_lateness_*`, `response_*`, `response_mean_ns`.
    ///
    /// `a_*` stands for five fields: `a_count`, `a_p50_ns`, `a_p90_ns`, `a_p99_ns`, `a_worst_ns`.
    #[must_use]
    pub fn fields(&self) -> Vec<Field> {
        let mut fields = vec![
            ("domain", FieldValue::Text(self.domain.clone())),
            ("task", FieldValue::Text(self.task.number().to_string())),
            ("jobs", FieldValue::Count(self.jobs)),
            ("jobs_late", FieldValue::Count(self.jobs_late)),
            ("jobs_done", FieldValue::Count(self.jobs_done)),
        ];
        fields.extend(spread(JOB_LATENESS, self.job_lateness));
        fields.extend(spread(RESPONSE, self.response));
        fields.push(("response_mean_ns", maybe_time(self.response.map(|of| of.mean))));
        fields
    }
}

impl ClientSummary {
    /// Returns the fields of a client, in this order: `client`, `domain`, `answered`, `response_*`,
    /// `response_mean_ns`.
    ///
    /// `response_*` stands for five fields: `response_count`, `response_p50_ns`, `response_p90_ns`,
    /// `response_p99_ns`, `response_worst_ns`.
    #[must_use]
    pub fn fields(&self) -> Vec<Field> {
        let mut fields = vec![
            ("client", FieldValue::Text(self.client.to_string())),
            ("domain", FieldValue::Text(self.domain.clone())),
            ("answered", FieldValue::Count(self.answered)),
        ];
        fields.extend(spread(RESPONSE, self.response));
        fields.push(("response_mean_ns", maybe_time(self.response.map(|of| of.mean))));
        fields
    }
}

impl CpuSummary {
    /// Returns the fields of a CPU, in this order: `cpu`, `busy_ns`, `due_ns`, `spare_ns`,
    /// `idle_ns`, `program_ns`, `others_ppm`, `stolen_ppm`, `unused_ppm`, `overhead_ns`,
    /// `*_overhead_ns`, `switches`.
    ///
    /// `*_overhead_ns` stands for one field for each kind of overhead, such as
    /// `switch_overhead_ns`.
    #[must_use]
    pub fn fields(&self) -> Vec<Field> {
        let mut fields = vec![
            ("cpu", FieldValue::Text(self.cpu.to_string())),
            ("busy_ns", time(self.busy)),
            ("due_ns", time(self.due)),
            ("spare_ns", time(self.spare)),
            ("idle_ns", time(self.idle)),
            ("program_ns", maybe_time(self.program)),
            ("others_ppm", count(self.shared.map(|of| of.others_ppm))),
            ("stolen_ppm", count(self.shared.map(|of| of.stolen_ppm))),
            ("unused_ppm", count(self.shared.map(|of| of.unused_ppm))),
            ("overhead_ns", maybe_time(self.overhead)),
        ];
        fields.extend(overheads(self.overheads));
        fields.push(("switches", FieldValue::Count(self.switches)));
        fields
    }
}

/// Returns one field for each kind of overhead.
fn overheads(times: Option<OverheadTimes>) -> [Field; OverheadKind::ALL.len()] {
    OverheadKind::ALL.map(|kind| {
        let name = match kind {
            OverheadKind::Switch => "switch_overhead_ns",
            OverheadKind::Migration => "migration_overhead_ns",
            OverheadKind::Refill => "refill_overhead_ns",
            OverheadKind::Tick => "tick_overhead_ns",
            OverheadKind::Interrupt => "interrupt_overhead_ns",
            OverheadKind::Balancing => "balancing_overhead_ns",
        };
        (name, maybe_time(times.map(|times| times.of(kind))))
    })
}

fn time(span: Span) -> FieldValue {
    FieldValue::Count(span.ns())
}

fn maybe_time(span: Option<Span>) -> FieldValue {
    span.map_or(FieldValue::Missing, time)
}

fn count(value: Option<u64>) -> FieldValue {
    value.map_or(FieldValue::Missing, FieldValue::Count)
}

fn spread(names: Names, of: Option<Distribution>) -> [Field; 5] {
    let quantile = |pick: fn(&Distribution) -> Option<Span>| maybe_time(of.as_ref().and_then(pick));
    let [how_many, p50, p90, p99, worst] = names;
    [
        (how_many, FieldValue::Count(of.map_or(0, |of| of.count))),
        (p50, quantile(|of| of.p50)),
        (p90, quantile(|of| of.p90)),
        (p99, quantile(|of| of.p99)),
        (worst, maybe_time(of.map(|of| of.worst))),
    ]
}
