//! Metrics by name, for claims: `misses of web`, `wake to run p99 of web`, `timer lateness p99`.
//!
//! The name of a metric is that of its field in words, without the unit: `wake_to_run_p99_ns` is
//! `wake to run p99`. Two names would mean two fields each: `delivered` and `work` are shares, and
//! the CPU times are `delivered time` and `work time`.

use core::fmt;

use slackline_units::Span;

use crate::fields::{Field, FieldValue};
use crate::{Summary, VcpuSummary};

/// What a metric came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// A length of time.
    Span(Span),
    /// A part, in millionths.
    Ppm(i64),
    /// A number of things.
    Count(u64),
    /// What is shown as a dash: not known, or there is none.
    Unknown,
}

/// What a metric is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A length of time.
    Time,
    /// A part of something, in percent.
    Part,
    /// A number of things.
    Things,
}

/// There is no such metric, or nobody of that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownMetric {
    /// What was asked for: `mises of web`.
    pub metric: String,
    /// What may have been meant: `misses of web`.
    pub nearest: Option<String>,
    /// What could stand in the place that is wrong: metrics, or else names.
    pub known: Vec<String>,
}

impl fmt::Display for UnknownMetric {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "there is no metric `{}`", self.metric)
    }
}

impl core::error::Error for UnknownMetric {}

/// Fields of several vCPUs or CPUs that are added up. Of all others the worst is taken: the one
/// furthest from zero.
const ADDED_UP: [&str; 43] = [
    "promised_ppm",
    "delivered_ns",
    "delivered_ppm",
    "present_ns",
    "work_ppm",
    "work_ns",
    "slowed_ns",
    "spun_ns",
    "deadlines",
    "misses",
    "switches",
    "migrations",
    "waiting_ns",
    "stopped_ns",
    "asleep_ns",
    "overrun_ns",
    "jobs",
    "jobs_late",
    "jobs_done",
    "moved_bytes",
    "seconds",
    "busy_ns",
    "due_ns",
    "spare_ns",
    "idle_ns",
    "others_ppm",
    "stolen_ppm",
    "unused_ppm",
    "program_ns",
    "overhead_ns",
    "switch_overhead_ns",
    "migration_overhead_ns",
    "refill_overhead_ns",
    "tick_overhead_ns",
    "interrupt_overhead_ns",
    "balancing_overhead_ns",
    "length_ns",
    "miss_time_count",
    "wake_to_run_count",
    "job_lateness_count",
    "response_count",
    "timer_lateness_count",
    "change_delay_count",
];

impl Summary {
    /// A metric of a vCPU, of a domain, of a CPU (`cpu0`) or, with no name, of the whole run.
    ///
    /// A domain is known by its name, as are its vCPUs: `web` for `web.0` and `web.1`. Of several
    /// vCPUs, amounts of CPU and numbers of things are added up, and of everything else the worst
    /// is taken. The whole run is all vCPUs, for a metric that vCPUs have.
    ///
    /// How late something was that never was late is no time at all, not unknown; and where there
    /// is a single value, which has no quantiles to be shown, a quantile is that value.
    ///
    /// # Errors
    /// When there is no such metric, or nobody of that name.
    pub fn lookup(&self, metric: &str, of: Option<&str>) -> Result<Measure, UnknownMetric> {
        self.find(metric, of).map(|(_, measure)| measure)
    }

    /// What a metric is measured in, whether it is known here or not.
    ///
    /// # Errors
    /// As [`Summary::lookup`].
    pub fn unit(&self, metric: &str, of: Option<&str>) -> Result<Unit, UnknownMetric> {
        self.find(metric, of).map(|(field, _)| Unit::of(field))
    }

    /// The field that a metric is, and what it came to.
    fn find(&self, metric: &str, of: Option<&str>) -> Result<Found, UnknownMetric> {
        let Some(of) = of else {
            let groups = [vec![self.fields()], self.vcpu_fields(), self.cpu_fields()];
            // CPUs come before vCPUs: they spend overhead also where no vCPU pays it.
            let found = [0, 2, 1].into_iter().find_map(|group| measure(metric, &groups[group]));
            return found.ok_or_else(|| unknown_metric(metric, None, &groups.concat()));
        };
        let rows = self.rows_of(of);
        if rows.is_empty() {
            return Err(self.unknown_name(metric, of));
        }
        measure(metric, &rows).ok_or_else(|| unknown_metric(metric, Some(of), &rows))
    }

    fn rows_of(&self, of: &str) -> Vec<Vec<Field>> {
        // Whoever is called so is meant alone.
        let is_one = self.vcpus.iter().any(|vcpu| vcpu.name == of);
        let is_meant = |vcpu: &VcpuSummary| vcpu.name == of || !is_one && domain(vcpu) == Some(of);
        let vcpus = self.vcpus.iter().zip(self.vcpu_fields());
        let rows = vcpus.filter(|(vcpu, _)| is_meant(vcpu));
        let rows: Vec<Vec<Field>> = rows.map(|(_, row)| row).collect();
        if !rows.is_empty() {
            return rows;
        }
        let cpus = self.cpus.iter().zip(self.cpu_fields());
        cpus.filter(|(cpu, _)| cpu.cpu.to_string() == of).map(|(_, row)| row).collect()
    }

    fn unknown_name(&self, metric: &str, of: &str) -> UnknownMetric {
        let mut known: Vec<String> = Vec::new();
        let mut add = |name: &str| {
            if known.last().is_none_or(|last| last != name) {
                known.push(name.to_string());
            }
        };
        self.vcpus.iter().filter_map(domain).for_each(&mut add);
        self.vcpus.iter().for_each(|vcpu| add(&vcpu.name));
        self.cpus.iter().for_each(|cpu| add(&cpu.cpu.to_string()));
        let nearest = nearest(of, &known).map(|name| format!("{metric} of {name}"));
        UnknownMetric { metric: format!("{metric} of {of}"), nearest, known }
    }
}

/// The domain of one vCPU among several: `web` of `web.1`.
fn domain(vcpu: &VcpuSummary) -> Option<&str> {
    // A domain of one vCPU may have a dot in its name: `ubuntu22.04`.
    let (domain, number) = vcpu.name.rsplit_once('.')?;
    number.parse().is_ok_and(|one: u16| one.to_string() == number).then_some(domain)
}

fn unknown_metric(metric: &str, of: Option<&str>, rows: &[Vec<Field>]) -> UnknownMetric {
    let mut known: Vec<String> = Vec::new();
    for field in rows.iter().flatten().filter(|field| is_number(&field.1)) {
        let name = words(field.0);
        if !known.contains(&name) {
            known.push(name);
        }
    }
    let whole = |metric: &str| match of {
        Some(of) => format!("{metric} of {of}"),
        None => metric.to_string(),
    };
    let nearest = nearest(metric, &known).map(|metric| whole(metric));
    UnknownMetric { metric: whole(metric), nearest, known }
}

/// A field, and what it came to.
type Found = (&'static str, Measure);

/// The metric over all rows; none if they have no such field.
fn measure(metric: &str, rows: &[Vec<Field>]) -> Option<Found> {
    let mut all: Option<Found> = None;
    for row in rows {
        let field = row.iter().find(|field| is_number(&field.1) && words(field.0) == metric)?;
        let next = typed(field.0, value(field, row));
        let together = match all {
            None => next,
            Some((_, before)) if ADDED_UP.contains(&field.0) => sum(before, next),
            Some((_, before)) => worse(before, next),
        };
        all = Some((field.0, together));
    }
    all
}

/// The value of a field: none where it is missing, but zero for how late something was that never
/// was late, and the worst for a quantile of one.
fn value(field: &Field, row: &[Field]) -> Option<i128> {
    let is_zero = |name: &str| row.contains(&(name, FieldValue::Count(0)));
    match field.1 {
        FieldValue::Count(count) => Some(i128::from(count)),
        FieldValue::Signed(signed) => Some(i128::from(signed)),
        _ if field.0.starts_with("miss_time") && is_zero("misses") => Some(0),
        _ if field.0.starts_with("job_lateness") && is_zero("jobs_late") && !is_zero("jobs") => {
            Some(0)
        }
        _ => {
            let quantiles = ["_p50", "_p90", "_p99"];
            let quantile = quantiles.iter().find(|end| field.0.contains(**end))?;
            let worst = field.0.replace(quantile, "_worst");
            value(row.iter().find(|field| field.0 == worst)?, row)
        }
    }
}

fn typed(name: &str, value: Option<i128>) -> Measure {
    let Some(value) = value else { return Measure::Unknown };
    let unsigned = u64::try_from(value).unwrap_or(u64::MAX);
    match Unit::of(name) {
        Unit::Part => Measure::Ppm(i64::try_from(value).unwrap_or(i64::MAX)),
        Unit::Time => Measure::Span(Span::from_ns(unsigned)),
        Unit::Things => Measure::Count(unsigned),
    }
}

impl Unit {
    /// That of a field, which its name ends in.
    #[must_use]
    pub fn of(field: &str) -> Unit {
        match field {
            _ if field.ends_with("_ppm") => Unit::Part,
            _ if field.ends_with("_ns") => Unit::Time,
            _ => Unit::Things,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Unit::Time => "a duration",
            Unit::Part => "a percentage",
            Unit::Things => "a number",
        })
    }
}

/// A sum is not known if a part of it is not.
fn sum(a: Measure, b: Measure) -> Measure {
    match (a, b) {
        (Measure::Span(a), Measure::Span(b)) => Measure::Span(a + b),
        (Measure::Ppm(a), Measure::Ppm(b)) => Measure::Ppm(a.saturating_add(b)),
        (Measure::Count(a), Measure::Count(b)) => Measure::Count(a + b),
        _ => Measure::Unknown,
    }
}

/// The worse of two, or the one that is known.
fn worse(a: Measure, b: Measure) -> Measure {
    match (a, b) {
        (Measure::Span(a), Measure::Span(b)) => Measure::Span(a.max(b)),
        (Measure::Ppm(a), Measure::Ppm(b)) => {
            Measure::Ppm(if b.unsigned_abs() > a.unsigned_abs() { b } else { a })
        }
        (Measure::Count(a), Measure::Count(b)) => Measure::Count(a.max(b)),
        (Measure::Unknown, known) | (known, _) => known,
    }
}

fn is_number(value: &FieldValue) -> bool {
    !matches!(value, FieldValue::Text(_) | FieldValue::Flag(_))
}

/// The name of a field in words, without its unit.
pub(crate) fn words(name: &str) -> String {
    match name {
        "delivered_ns" => return "delivered time".to_string(),
        "work_ns" => return "work time".to_string(),
        _ => {}
    }
    let units = ["_ns", "_ppm", "_bytes"];
    let bare = units.iter().find_map(|unit| name.strip_suffix(unit)).unwrap_or(name);
    bare.replace('_', " ")
}

/// What is likely to have been meant: two letters, or a third of it, may be mistyped.
fn nearest<'a>(asked: &str, known: &'a [String]) -> Option<&'a String> {
    let far = |name: &&String| distance(asked, name);
    known.iter().min_by_key(far).filter(|name| distance(asked, name) <= (name.len() / 3).max(2))
}

/// How many letters must be put in, taken out or changed to make one text the other (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.chars().enumerate() {
            let changed = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[row.len() - 1]
}
