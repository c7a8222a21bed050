//! Fields of a summary for other programs: a value and a name that ends in the unit.
//!
//! Units: `_ns` nanoseconds, `_ns_per_s` nanoseconds in each second of the span, `_ppm` millionths
//! of the span (of one CPU), `_milli_per_s` thousandths per second.

use slackline_units::Span;

use super::{POINT, Point, XenMonDomain, XenMonSummary};
use crate::split::ppm;
use crate::{Field, FieldValue};

const SECOND: Span = Span::from_secs(1);

impl XenMonSummary {
    /// Returns the fields of the run, in this order: `length_ns`, `point_ns`.
    #[must_use]
    pub fn fields(&self) -> Vec<Field> {
        vec![("length_ns", ns(Some(self.length))), ("point_ns", ns(Some(POINT)))]
    }

    /// Returns the fields of a domain over the whole run: `domain`, then the fields of
    /// [`Self::point_fields`].
    #[must_use]
    pub fn domain_fields(&self, domain: &XenMonDomain) -> Vec<Field> {
        let mut fields = vec![("domain", FieldValue::Text(domain.name.clone()))];
        fields.extend(self.point_fields(&domain.total, self.length));
        fields
    }

    /// Returns the fields of a span of time, in this order: `gotten_ns`, `gotten_ns_per_s`,
    /// `gotten_ppm`, `gotten_per_execution_ns`, `allocated_ns`, `allocated_per_execution_ns`,
    /// `blocked_ns`, `blocked_ns_per_s`, `blocked_ppm`, `blocked_per_io_ns`, `waited_ns`,
    /// `waited_ns_per_s`, `waited_ppm`, `waited_per_execution_ns`, `executions`,
    /// `executions_milli_per_s`, `io`, `io_milli_per_s`, `io_milli_per_execution`.
    ///
    /// `allocated_per_execution_ns` is the mean over executions that granted a slice. Numbers that
    /// the host could not observe are missing.
    #[must_use]
    pub fn point_fields(&self, point: &Point, over: Span) -> Vec<Field> {
        let runs = self.knows.stretches;
        let waits = (runs && self.knows.sleep).then_some(point.waited);
        let blocked = self.knows.sleep.then_some(point.blocked);
        let (executions, sliced) = (runs.then_some(point.executions), runs.then_some(point.sliced));
        let io = self.knows_io.then_some(point.io);
        let gotten = Some(point.gotten);
        let allocated = Some(point.allocated).filter(|_| sliced > Some(0));
        vec![
            ("gotten_ns", ns(gotten)),
            ("gotten_ns_per_s", per_second(gotten, over)),
            ("gotten_ppm", share(gotten, over)),
            ("gotten_per_execution_ns", each(gotten, executions)),
            ("allocated_ns", ns(allocated)),
            ("allocated_per_execution_ns", each(allocated, sliced)),
            ("blocked_ns", ns(blocked)),
            ("blocked_ns_per_s", per_second(blocked, over)),
            ("blocked_ppm", share(blocked, over)),
            ("blocked_per_io_ns", each(blocked, io)),
            ("waited_ns", ns(waits)),
            ("waited_ns_per_s", per_second(waits, over)),
            ("waited_ppm", share(waits, over)),
            ("waited_per_execution_ns", each(waits, executions)),
            ("executions", executions.map_or(FieldValue::Missing, FieldValue::Count)),
            ("executions_milli_per_s", rate(executions, over)),
            ("io", io.map_or(FieldValue::Missing, FieldValue::Count)),
            ("io_milli_per_s", rate(io, over)),
            ("io_milli_per_execution", milli(io, executions)),
        ]
    }
}

/// Returns the number of events per second, in thousandths. `None` if `over` is zero.
fn milli_per_second(count: u64, over: Span) -> Option<u64> {
    let ns = u128::from(over.ns());
    let milli = (u128::from(count) * 1_000 * u128::from(SECOND.ns()) + ns / 2).checked_div(ns)?;
    u64::try_from(milli).ok()
}

/// Returns the mean of `of` per event, rounded to the nearest nanosecond. `None` if `count` is
/// zero.
fn part(of: Span, count: u64) -> Option<Span> {
    (count > 0).then(|| Span::from_ns((of.ns() + count / 2) / count))
}

fn ns(span: Option<Span>) -> FieldValue {
    span.map_or(FieldValue::Missing, |span| FieldValue::Count(span.ns()))
}

fn per_second(span: Option<Span>, over: Span) -> FieldValue {
    // Rates are in nanoseconds per second. Millionths would be too coarse: one of them is a
    // thousand nanoseconds.
    let rate = |span: Span| {
        let all = u128::from(over.ns());
        (u128::from(span.ns()) * u128::from(SECOND.ns()) + all / 2).checked_div(all)
    };
    let rate = span.and_then(rate).and_then(|rate| u64::try_from(rate).ok());
    rate.map_or(FieldValue::Missing, FieldValue::Count)
}

fn share(span: Option<Span>, over: Span) -> FieldValue {
    span.map_or(FieldValue::Missing, |span| FieldValue::Count(ppm(span, over)))
}

fn each(span: Option<Span>, count: Option<u64>) -> FieldValue {
    ns(span.zip(count).and_then(|(span, count)| part(span, count)))
}

fn rate(count: Option<u64>, over: Span) -> FieldValue {
    let rate = count.and_then(|count| milli_per_second(count, over));
    rate.map_or(FieldValue::Missing, FieldValue::Count)
}

fn milli(part: Option<u64>, of: Option<u64>) -> FieldValue {
    let milli = part.zip(of).and_then(|(part, of)| (part * 1_000 + of / 2).checked_div(of));
    milli.map_or(FieldValue::Missing, FieldValue::Count)
}
