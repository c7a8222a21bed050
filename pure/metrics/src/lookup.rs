//! Metrics by name, for claims: `misses of web`, `wake to run p99 of web`, `timer lateness p99`.
//!
//! The name of a metric is the name of its field in words, without the unit: `wake_to_run_p99_ns`
//! is `wake to run p99`. Without their units, `delivered_ns` and `delivered_ppm` would have equal
//! names, and so would `work_ns` and `work_ppm`. So in claims the shares are named `delivered` and
//! `work`, and the CPU times `delivered time` and `work time`.

use core::fmt;
use std::collections::BTreeMap;

use slackline_units::Span;

use crate::fields::{Field, FieldValue};
use crate::split::ppm;
use crate::{CpuSummary, Summary, TaskSummary, VcpuSummary};

/// Value of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Duration of any length.
    Span(Span),
    /// Part of a whole, in millionths.
    Ppm(i64),
    /// Count of something, without a unit.
    Count(u64),
    /// Value that is unknown or does not exist. Tables show a dash for it.
    Unknown,
}

/// Unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Duration of any length.
    Time,
    /// Part of a whole, shown in percent.
    Part,
    /// Count of something, without a unit.
    Things,
}

/// Error for a metric that does not exist, or for an unknown vCPU, domain, CPU, client or task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownMetric {
    /// Name of the metric as the claim states it, such as the misspelled `mises of web`.
    pub metric: String,
    /// Similar metric that may have been meant: `misses of web`. `None` if nothing is similar.
    pub nearest: Option<String>,
    /// Valid replacements for the part of the name that is unknown: metrics, vCPUs, domains or
    /// CPUs.
    pub known: Vec<String>,
}

impl fmt::Display for UnknownMetric {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "there is no metric `{}`", self.metric)
    }
}

impl core::error::Error for UnknownMetric {}

/// Fields whose values are added up over several vCPUs or CPUs. For all other fields, the value
/// furthest from zero is taken as the worst.
const ADDED_UP: [&str; 46] = [
    "boosts",
    "false_boosts",
    "boosted_ns",
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

/// Parts of field names that mark a field as a quantile.
const QUANTILES: [&str; 3] = ["_p50", "_p90", "_p99"];

impl Summary {
    /// Returns the value of a metric. `of` names a vCPU, a domain, a CPU (`cpu0`), a client
    /// (`client0`) or a named task (`web/0`). Without `of`, the metric is a metric of the whole
    /// run.
    ///
    /// The name of a domain stands for all its vCPUs: `web` means `web.0` and `web.1`. Over several
    /// vCPUs, amounts of CPU time and counts are added up. For all other metrics, the worst value
    /// is taken. Without `of`, a metric of vCPUs covers all vCPUs of the run.
    ///
    /// If nothing was late, a lateness is zero and not unknown. A quantile of a single value is
    /// that value.
    ///
    /// # Errors
    /// If the metric does not exist, or if the run has no subject with the name `of`.
    pub fn lookup(&self, metric: &str, of: Option<&str>) -> Result<Measure, UnknownMetric> {
        self.find(metric, of).map(|(_, measure)| measure)
    }

    /// Returns the unit of a metric, even if the value of the metric is unknown.
    ///
    /// # Errors
    /// As for [`Summary::lookup`].
    pub fn unit(&self, metric: &str, of: Option<&str>) -> Result<Unit, UnknownMetric> {
        self.find(metric, of).map(|(field, _)| Unit::of(field))
    }

    /// Returns a duration of a CPU, such as its idle time, as a part of the time measured on that
    /// CPU. Without `of`, sums over all CPUs are used. `None` if the metric is not a duration of a
    /// CPU.
    #[must_use]
    pub fn part_of_cpu(&self, metric: &str, of: Option<&str>) -> Option<Measure> {
        let is_called =
            |of: &str| self.vcpus.iter().any(|vcpu| vcpu.name == of || vcpu.domain == of);
        if of.is_some_and(is_called) {
            return None;
        }
        let is_meant = |cpu: &CpuSummary| of.is_none_or(|of| cpu.cpu.to_string() == of);
        let rows = self.cpus.iter().zip(self.cpu_fields());
        let rows: Vec<Vec<Field>> =
            rows.filter(|(cpu, _)| is_meant(cpu)).map(|(_, row)| row).collect();
        let (field, measure) = measure(metric, &rows)?;
        let length = u64::try_from(rows.len()).ok()?.checked_mul(self.length.ns())?;
        match (Unit::of(field), measure) {
            (Unit::Time, Measure::Span(span)) => {
                let part = ppm(span, Span::from_ns(length));
                Some(Measure::Ppm(i64::try_from(part).unwrap_or(i64::MAX)))
            }
            (Unit::Time, _) => Some(Measure::Unknown),
            _ => None,
        }
    }

    /// Returns the field of a metric, with its value.
    fn find(&self, metric: &str, of: Option<&str>) -> Result<Found, UnknownMetric> {
        let Some(of) = of else {
            let groups = [vec![self.fields()], self.vcpu_fields(), self.cpu_fields()];
            // CPUs are searched before vCPUs, because CPUs also have overhead that no vCPU pays.
            let found = [0, 2, 1].into_iter().find_map(|group| measure(metric, &groups[group]));
            return found.ok_or_else(|| unknown_metric(metric, None, &groups.concat()));
        };
        let rows = self.rows_of(of);
        if rows.is_empty() {
            return Err(self.unknown_name(metric, of));
        }
        measure(metric, &rows).ok_or_else(|| unknown_metric(metric, Some(of), &rows))
    }

    /// Returns the number of values behind a quantile. Over several vCPUs, that is the number for
    /// the vCPU with the worst quantile. `None` if the metric is not a quantile, or if the quantile
    /// is unknown.
    #[must_use]
    pub fn values_of_quantile(&self, metric: &str, of: Option<&str>) -> Option<u64> {
        let groups = match of {
            Some(of) => vec![self.rows_of(of)],
            None => vec![vec![self.fields()], self.cpu_fields(), self.vcpu_fields()],
        };
        let of_rows = |rows: &Vec<Vec<Field>>| measure(metric, rows).is_some();
        let rows = groups.iter().find(|rows| of_rows(rows))?;
        let (field, worst) = measure(metric, rows)?;
        let (name, _) = QUANTILES.iter().find_map(|quantile| field.split_once(quantile))?;
        let count = if name == "second_error" { "seconds".into() } else { format!("{name}_count") };
        let is_worst = |row: &&Vec<Field>| {
            measure(metric, core::slice::from_ref(row)).is_some_and(|(_, value)| value == worst)
        };
        let row = rows.iter().find(is_worst).filter(|_| worst != Measure::Unknown)?;
        match row.iter().find(|(name, _)| *name == count)?.1 {
            FieldValue::Count(count) => Some(count),
            _ => None,
        }
    }

    /// Returns the totals of each domain, in the order of the domains' first vCPUs. A row has the
    /// `name` of the domain and its number of `vcpus`. Then follows, for each field that can be
    /// added up, the sum over the vCPUs. A sum is missing if the value of one vCPU is unknown.
    #[must_use]
    pub fn domain_fields(&self) -> Vec<Vec<Field>> {
        let mut domains: Vec<(&str, Vec<Vec<Field>>)> = Vec::new();
        let mut known: BTreeMap<&str, usize> = BTreeMap::new();
        for (vcpu, row) in self.vcpus.iter().zip(self.vcpu_fields()) {
            let domain = *known.entry(&vcpu.domain).or_insert(domains.len());
            match domains.get_mut(domain) {
                Some((_, rows)) => rows.push(row),
                None => domains.push((vcpu.domain.as_str(), vec![row])),
            }
        }
        let totals = |(name, rows): (&str, Vec<Vec<Field>>)| {
            let count = FieldValue::Count(rows.len() as u64);
            let head = [("name", FieldValue::Text(name.to_owned())), ("vcpus", count)];
            let added = rows[0].iter().filter(|(field, _)| ADDED_UP.contains(field));
            let added = added.map(|&(field, _)| (field, total(field, &rows)));
            head.into_iter().chain(added).collect()
        };
        domains.into_iter().map(totals).collect()
    }

    fn rows_of(&self, of: &str) -> Vec<Vec<Field>> {
        // A vCPU with exactly this name takes precedence over a domain.
        let is_one = self.vcpus.iter().any(|vcpu| vcpu.name == of);
        let is_meant = |vcpu: &VcpuSummary| vcpu.name == of || !is_one && vcpu.domain == of;
        let vcpus = self.vcpus.iter().zip(self.vcpu_fields());
        let rows = vcpus.filter(|(vcpu, _)| is_meant(vcpu));
        let rows: Vec<Vec<Field>> = rows.map(|(_, row)| row).collect();
        if !rows.is_empty() {
            return rows;
        }
        let cpus = self.cpus.iter().map(|cpu| cpu.cpu.to_string()).zip(self.cpu_fields());
        let clients = self.clients.iter().map(|it| it.client.to_string());
        let tasks = self.tasks.iter().map(TaskSummary::name).zip(self.task_fields());
        let rows = cpus.chain(clients.zip(self.client_fields())).chain(tasks);
        rows.filter(|(name, _)| name == of).map(|(_, row)| row).collect()
    }

    fn unknown_name(&self, metric: &str, of: &str) -> UnknownMetric {
        let mut known: Vec<String> = Vec::new();
        let mut add = |name: &str| {
            if known.last().is_none_or(|last| last != name) {
                known.push(name.to_string());
            }
        };
        let has_several = |vcpu: &&VcpuSummary| vcpu.domain != vcpu.name;
        self.vcpus.iter().filter(has_several).for_each(|vcpu| add(&vcpu.domain));
        self.vcpus.iter().for_each(|vcpu| add(&vcpu.name));
        self.cpus.iter().for_each(|cpu| add(&cpu.cpu.to_string()));
        self.clients.iter().for_each(|client| add(&client.client.to_string()));
        self.tasks.iter().for_each(|task| add(&task.name()));
        let nearest = nearest(of, &known).map(|name| format!("{metric} of {name}"));
        UnknownMetric { metric: format!("{metric} of {of}"), nearest, known }
    }
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

/// Field of a summary and its value.
type Found = (&'static str, Measure);

/// Returns the value of a metric over all rows: the sum or the worst value. `None` if the rows have
/// no such field.
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

/// Returns the sum of a field over all rows.
fn total(field: &str, rows: &[Vec<Field>]) -> FieldValue {
    let value = |row: &Vec<Field>| match row.iter().find(|(name, _)| *name == field)?.1 {
        FieldValue::Count(count) => Some(count),
        _ => None,
    };
    let sum = rows.iter().map(value).try_fold(0_u64, |sum, value| sum.checked_add(value?));
    sum.map_or(FieldValue::Missing, FieldValue::Count)
}

/// Returns the value of a field as a number. `None` if the value is missing. If nothing was late, a
/// lateness is zero. A quantile of a single value is that value.
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
            let quantile = QUANTILES.iter().find(|end| field.0.contains(**end))?;
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
    /// Returns the unit in which the name of a field ends.
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

/// Returns the sum of two values. Unknown if at least one of the values is unknown.
fn sum(a: Measure, b: Measure) -> Measure {
    match (a, b) {
        (Measure::Span(a), Measure::Span(b)) => Measure::Span(a + b),
        (Measure::Ppm(a), Measure::Ppm(b)) => Measure::Ppm(a.saturating_add(b)),
        (Measure::Count(a), Measure::Count(b)) => Measure::Count(a + b),
        _ => Measure::Unknown,
    }
}

/// Returns the value that is further from zero. If only one of the two values is known, returns
/// that value.
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

/// Returns the name of a field in words, without its unit.
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

/// Returns the known name that is most similar to `asked`. `None` if every known name differs by
/// more than two letters and by more than a third of its letters.
fn nearest<'a>(asked: &str, known: &'a [String]) -> Option<&'a String> {
    let far = |name: &&String| distance(asked, name);
    known.iter().min_by_key(far).filter(|name| distance(asked, name) <= (name.len() / 3).max(2))
}

/// Returns the number of letters to insert, delete or change to turn one text into the other
/// (Levenshtein distance).
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
