//! History: the CPU time that each reservation received, by hour of the wall clock.
//!
//! Time that no daemon counted is *unknown*, and does not count as delivered. This is time in which
//! no daemon ran or the host was suspended, and time that a step of the wall clock skipped. The
//! sums of all hours of a day add up to the sum of the day. If the wall clock is set back, time is
//! counted in the last hour until the clock has reached the end of that hour.

mod counters;

use std::collections::BTreeMap;

use slackline_units::{DomId, Span, Time};

use crate::name::Name;
use crate::principal::Principal;
use crate::terms::Terms;
pub use counters::Counters;

/// Length of an hour, in nanoseconds.
pub const HOUR_NS: u64 = 3_600_000_000_000;

/// Number of hours of a day.
pub const DAY: u32 = 24;

/// Longest time by which the wall clock may advance more than the service's clock between two
/// counts. A larger difference counts as a step of the wall clock. A smaller one is jitter or slew.
const JITTER_NS: u64 = 5_000_000_000;

/// Maximum number of rows that are kept while the ledger cannot be written. If there are more, rows
/// are dropped in the order of the reservations' names.
const MOST_UNWRITTEN: usize = 50_000;

/// Maximum number of ended reservations whose rows of the current hour are kept. A new reservation
/// continues the row of an ended reservation of the same name, but only if that row was kept.
const MOST_ENDED: usize = 10_000;

/// CPU time and deadlines of a reservation over some time, as sums over all its vCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HourSums {
    /// Time for which the reservation existed.
    pub existed: Span,
    /// Part of `existed` that was measured. All other sums cover only this part.
    pub known: Span,
    /// Time in which the VM was contested: another program had changed its threads. In that time
    /// the reservation was not enforced.
    pub contested: Span,
    /// Sum of the slices of all periods, whether the VM was runnable, blocked or absent.
    pub reserved: Span,
    /// Part of `reserved` to which the VM was entitled. It is less than `reserved` if the VM
    /// blocked or was absent.
    pub due: Span,
    /// CPU time that the VM used.
    pub delivered: Span,
    /// Sum of the tardiness of all missed deadlines.
    pub late: Span,
    /// Number of periods at whose end a vCPU of the VM was entitled to CPU time.
    pub deadlines: u64,
    /// Number of the periods counted in `deadlines` in which a vCPU got less than its entitlement.
    pub missed: u64,
}

impl HourSums {
    /// Returns the time for which the reservation existed but was not measured.
    #[must_use]
    pub fn unknown(&self) -> Span {
        self.existed.left_after(self.known)
    }

    /// Adds the sums of another interval to these sums.
    pub fn add(&mut self, other: &HourSums) {
        self.existed += other.existed;
        self.known += other.known;
        self.contested += other.contested;
        self.reserved += other.reserved;
        self.due += other.due;
        self.delivered += other.delivered;
        self.late += other.late;
        self.deadlines += other.deadlines;
        self.missed += other.missed;
    }

    /// Removes and returns the fraction `part / of` of each sum, rounded down. If `part` is at
    /// least `of`, removes everything.
    fn take(&mut self, part: u64, of: u64) -> HourSums {
        let mut taken = HourSums::default();
        let span = |from: &mut Span, to: &mut Span| {
            *to = Span::from_ns(portion(from.ns(), part, of));
            *from = from.left_after(*to);
        };
        span(&mut self.existed, &mut taken.existed);
        span(&mut self.known, &mut taken.known);
        span(&mut self.contested, &mut taken.contested);
        span(&mut self.reserved, &mut taken.reserved);
        span(&mut self.due, &mut taken.due);
        span(&mut self.delivered, &mut taken.delivered);
        span(&mut self.late, &mut taken.late);
        let count = |from: &mut u64, to: &mut u64| {
            *to = portion(*from, part, of);
            *from -= *to;
        };
        count(&mut self.deadlines, &mut taken.deadlines);
        count(&mut self.missed, &mut taken.missed);
        taken
    }
}

/// Returns `of_all * part / of`, rounded down, and at most `of_all`. If `of` is zero, returns
/// `of_all`.
fn portion(of_all: u64, part: u64, of: u64) -> u64 {
    if part >= of {
        return of_all;
    }
    let share = u128::from(of_all) * u128::from(part) / u128::from(of);
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Sums of a reservation in one hour, or in one day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hour {
    /// Name of the reservation.
    pub name: Name,
    /// Principal that made the reservation.
    pub owner: Principal,
    /// Start of the hour or day, in whole hours since 1970.
    pub start: u64,
    /// Length in hours: 1, or 24 for a day.
    pub length: u32,
    /// Wall-clock time up to which the sums are complete, in nanoseconds since 1970.
    pub until_ns: u64,
    /// True if the reservation existed without a break since the end of its previous row.
    pub continues: bool,
    /// Sums of the hour or day.
    pub sums: HourSums,
}

impl Hour {
    fn new(named: (Name, Principal), start: u64, (until_ns, continues): (u64, bool)) -> Hour {
        let (name, owner) = named;
        Hour { name, owner, start, length: 1, until_ns, continues, sums: HourSums::default() }
    }

    /// Returns the end of the hour or day, in hours since 1970.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start.saturating_add(u64::from(self.length))
    }

    /// Counts the time from `until_ns` to the end of the hour as existing but unknown.
    fn complete(&mut self) {
        let end_ns = self.end().saturating_mul(HOUR_NS);
        self.sums.existed += Span::from_ns(end_ns.saturating_sub(self.until_ns));
        self.until_ns = self.until_ns.max(end_ns);
    }
}

/// Readings of the service's clock and of the wall clock at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// Time of the service's clock.
    pub now: Time,
    /// Time of the wall clock, in nanoseconds since 1970.
    pub wall_ns: u64,
}

/// Histories of all reservations that are in the scheduler.
#[derive(Clone, Debug, Default)]
pub struct History {
    open: BTreeMap<DomId, Open>,
    /// Latest rows from the ledger. A row is removed when its reservation is first counted.
    loaded: BTreeMap<Name, Hour>,
    /// Rows of reservations that ended in the current hour. If a new reservation gets the name, it
    /// continues the row.
    ended: BTreeMap<Name, Hour>,
    /// Start of the latest hour in which a reservation has ended. Rows of earlier hours are not in
    /// `ended`.
    ended_from: u64,
    /// Rows that are not in the ledger yet, by name and start.
    unwritten: BTreeMap<(Name, u64), Hour>,
}

#[derive(Clone, Debug)]
struct Open {
    hour: Hour,
    counted: Time,
    counters: Counters,
    terms: Terms,
    is_contested: bool,
}

impl History {
    /// Creates a history that continues the rows `last`: the latest row of each reservation in the
    /// ledger.
    #[must_use]
    pub fn recover(last: impl IntoIterator<Item = Hour>) -> History {
        let loaded = last.into_iter().map(|hour| (hour.name.clone(), hour)).collect();
        History { loaded, ..History::default() }
    }

    /// Starts to count the CPU time of a domain that has just been added to the scheduler. If an
    /// earlier daemon counted the reservation, the time since its last row is unknown.
    pub fn begin(
        &mut self,
        domain: DomId,
        (name, owner, terms): (&Name, Principal, Terms),
        counters: Counters,
        at: Clocks,
    ) {
        self.end(domain, None, at);
        let ended = self.ended.remove(name).filter(|ended| ended.start >= at.wall_ns / HOUR_NS);
        let named = (name.clone(), owner);
        let hour = match (self.loaded.remove(name), ended) {
            (Some(last), _) => last,
            (None, Some(ended)) => Hour { until_ns: at.wall_ns.max(ended.until_ns), ..ended },
            (None, None) => Hour::new(named, at.wall_ns / HOUR_NS, (at.wall_ns, false)),
        };
        let hour = Hour { owner, ..hour };
        let mut open = Open { hour, counted: at.now, counters, terms, is_contested: false };
        self.unwritten.extend(open.advance(None, HourSums::default(), at.wall_ns));
        self.open.insert(domain, open);
    }

    /// Counts the CPU time of a domain since its last count. Must be called before the terms or the
    /// state of the domain change.
    pub fn count(&mut self, domain: DomId, counters: Counters, at: Clocks) {
        let Some(open) = self.open.get_mut(&domain) else { return };
        let elapsed = at.now.since(open.counted.min(at.now));
        open.counted = open.counted.max(at.now);
        let grown = counters.grown(&mut open.counters);
        let vcpus = u64::from(open.terms.vcpus());
        let sums = HourSums {
            existed: elapsed,
            known: elapsed,
            contested: if open.is_contested { elapsed } else { Span::ZERO },
            reserved: open.reserved(elapsed * vcpus),
            due: open.reserved(grown.runnable),
            delivered: grown.delivered,
            late: grown.late,
            deadlines: grown.deadlines,
            missed: grown.missed,
        };
        self.unwritten.extend(open.advance(Some(elapsed), sums, at.wall_ns));
        let (key, hour) = open.row();
        self.unwritten.insert(key, hour);
        while self.unwritten.len() > MOST_UNWRITTEN {
            self.unwritten.pop_first();
        }
    }

    /// Sets the terms of a domain that are in force from now on.
    pub fn change(&mut self, domain: DomId, terms: Terms) {
        if let Some(open) = self.open.get_mut(&domain) {
            open.terms = terms;
        }
    }

    /// Records whether another program now controls threads of the domain's VM (contested).
    pub fn contest(&mut self, domain: DomId, is_contested: bool) {
        if let Some(open) = self.open.get_mut(&domain) {
            open.is_contested = is_contested;
        }
    }

    /// Counts the CPU time of a domain for the last time. If `counters` is `None`, the CPU time
    /// since the last count is lost.
    pub fn end(&mut self, domain: DomId, counters: Option<Counters>, at: Clocks) {
        if let Some(counters) = counters {
            self.count(domain, counters, at);
        }
        let Some(open) = self.open.remove(&domain) else { return };
        let start = open.hour.start;
        if start > self.ended_from {
            self.ended_from = start;
            self.ended.retain(|_, ended| ended.start >= start);
        }
        if self.ended.len() < MOST_ENDED {
            self.ended.insert(open.hour.name.clone(), open.hour);
        }
    }

    /// Returns the domains that are counted.
    pub fn domains(&self) -> impl Iterator<Item = DomId> + '_ {
        self.open.keys().copied()
    }

    /// Removes and returns the rows that are not in the ledger yet.
    pub fn take_unwritten(&mut self) -> Vec<Hour> {
        std::mem::take(&mut self.unwritten).into_values().collect()
    }

    /// Puts back rows that could not be written. If there is a newer version of a row, the newer
    /// version stays.
    pub fn put_back(&mut self, rows: Vec<Hour>) {
        for hour in rows {
            self.unwritten.entry((hour.name.clone(), hour.start)).or_insert(hour);
        }
    }
}

impl Open {
    /// Returns the CPU time that is reserved for one vCPU in the time `time`.
    fn reserved(&self, time: Span) -> Span {
        let each = self.terms.each();
        Span::from_ns(portion_of_rate(time.ns(), each.slice().ns(), each.period().ns()))
    }

    fn row(&self) -> ((Name, u64), Hour) {
        ((self.hour.name.clone(), self.hour.start), self.hour.clone())
    }

    /// Advances the row to the wall-clock time `wall_ns`, and returns the rows of the hours that
    /// have ended. `sums` covers the last `elapsed` before `wall_ns`. The time between the previous
    /// end of the row and these sums is unknown. If `elapsed` is `None`, all the time is unknown.
    fn advance(
        &mut self,
        elapsed: Option<Span>,
        mut sums: HourSums,
        wall_ns: u64,
    ) -> Vec<((Name, u64), Hour)> {
        let from = self.hour.until_ns;
        let to = wall_ns.max(from);
        let gap = (to - from).saturating_sub(elapsed.map_or(0, Span::ns));
        let is_jitter = elapsed.is_some() && gap <= JITTER_NS;
        let begin = if is_jitter { from } else { from + gap };
        let mut over: Vec<_> = self.enter(begin / HOUR_NS).into_iter().collect();
        let gap_from = from.max(self.hour.start.saturating_mul(HOUR_NS));
        self.hour.sums.existed += Span::from_ns(begin.saturating_sub(gap_from));
        self.hour.until_ns = begin.max(self.hour.until_ns);
        let mut at = begin;
        while at < to {
            over.extend(self.enter(at / HOUR_NS));
            let end = to.min((at / HOUR_NS + 1).saturating_mul(HOUR_NS));
            self.hour.sums.add(&sums.take(end - at, to - at));
            self.hour.until_ns = end;
            at = end;
        }
        // What remains of the interval belongs to the current hour. If the wall clock has not
        // advanced, that is the whole interval.
        self.hour.sums.add(&sums);
        over
    }

    /// Starts the row of the hour `start`, if that is later than the current hour. In that case,
    /// returns the row of the hour that has ended.
    fn enter(&mut self, start: u64) -> Option<((Name, u64), Hour)> {
        if start <= self.hour.start {
            return None;
        }
        let over = self.row();
        let named = (self.hour.name.clone(), self.hour.owner);
        self.hour = Hour::new(named, start, (start.saturating_mul(HOUR_NS), true));
        Some(over)
    }
}

/// Returns `time * slice / period`.
fn portion_of_rate(time: u64, slice: u64, period: u64) -> u64 {
    let share = u128::from(time) * u128::from(slice) / u128::from(period.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Fills the gaps between the rows of one reservation, which are sorted oldest first. If the
/// reservation existed between two rows, the time between them is unknown, and each hour without a
/// row gets one. Returns at most `most` rows.
#[must_use]
pub fn fill(rows: Vec<Hour>, most: usize) -> Vec<Hour> {
    let mut filled: Vec<Hour> = Vec::new();
    for hour in rows {
        if let Some(last) = filled.last_mut().filter(|_| hour.continues) {
            last.complete();
            let missing = last.end()..hour.start;
            let room = most.saturating_sub(filled.len());
            filled.extend(missing.take(room).map(|start| unknown(&hour, start)));
        }
        filled.push(hour);
    }
    filled.truncate(most);
    filled
}

/// Returns a row for an hour before `next` in which nothing was counted.
fn unknown(next: &Hour, start: u64) -> Hour {
    let named = (next.name.clone(), next.owner);
    let mut hour = Hour::new(named, start, (start.saturating_mul(HOUR_NS), true));
    hour.complete();
    hour
}

/// Adds up hourly rows to daily rows. Days begin at midnight UTC.
#[must_use]
pub fn by_day(hours: impl IntoIterator<Item = Hour>) -> Vec<Hour> {
    let mut days: Vec<Hour> = Vec::new();
    for hour in hours {
        let start = hour.start - hour.start % u64::from(DAY);
        match days.last_mut().filter(|day| day.start == start) {
            Some(day) => {
                day.sums.add(&hour.sums);
                day.until_ns = day.until_ns.max(hour.until_ns);
            }
            None => days.push(Hour { start, length: DAY, ..hour }),
        }
    }
    days
}

#[cfg(test)]
mod tests {
    use slackline_units::Reservation;

    use super::*;

    const MINUTE: u64 = 60_000_000_000;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn terms(slice: u64, vcpus: u16) -> Terms {
        let each = Reservation::new(Span::from_ms(slice), Span::from_ms(10)).unwrap();
        Terms::new(each, true, vcpus).unwrap()
    }

    fn at(minute: u64, wall_minute: u64) -> Clocks {
        Clocks { now: Time::from_ns(minute * MINUTE), wall_ns: wall_minute * MINUTE }
    }

    fn counters(seconds: u64) -> Counters {
        Counters {
            runnable: Span::from_secs(seconds),
            delivered: Span::from_secs(seconds / 2),
            late: Span::from_ms(seconds),
            deadlines: seconds * 100,
            missed: seconds,
        }
    }

    const WEB: DomId = DomId::new(1);

    const OWNER: Principal = Principal::User(7);

    fn begun(wall_minute: u64) -> History {
        let mut history = History::default();
        history.begin(
            WEB,
            (&name("web"), OWNER, terms(2, 2)),
            Counters::default(),
            at(0, wall_minute),
        );
        history
    }

    #[test]
    fn reservation_history_divides_interval_among_hours_by_length() {
        let mut history = begun(100);
        // The interval lasts from 01:40 to 02:20.
        history.count(WEB, counters(2_400), at(40, 140));
        let rows = history.take_unwritten();
        let [first, second] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((first.start, second.start), (1, 2));
        assert_eq!((first.continues, second.continues), (false, true));
        let sum = |sums: &HourSums| (sums.known, sums.delivered, sums.missed);
        let half = (Span::from_secs(1_200), Span::from_secs(600), 1_200);
        assert_eq!((sum(&first.sums), sum(&second.sums)), (half, half));
        // Each of two vCPUs reserves 2 ms in 10 ms.
        assert_eq!(first.sums.reserved, Span::from_secs(480));
        assert_eq!(first.sums.due, Span::from_secs(240));
        assert_eq!(first.sums.unknown(), Span::ZERO);
    }

    #[test]
    fn history_counts_each_increase_of_a_counter_once() {
        let mut history = begun(60);
        for minute in 1..=10 {
            history.count(WEB, counters(minute * 60), at(minute, 60 + minute));
        }
        let rows = history.take_unwritten();
        assert_eq!(rows.len(), 1);
        let HourSums { existed, known, delivered, deadlines, missed, .. } = rows[0].sums;
        assert_eq!((existed, known), (Span::from_secs(600), Span::from_secs(600)));
        assert_eq!((delivered, deadlines, missed), (Span::from_secs(300), 60_000, 600));
        // A counter that falls and rises again is not counted twice.
        history.count(WEB, Counters { missed: 599, ..counters(600) }, at(11, 71));
        history.count(WEB, counters(600), at(12, 72));
        assert_eq!(history.take_unwritten()[0].sums.missed, 600);
        assert!(history.take_unwritten().is_empty());
    }

    #[test]
    fn history_applies_changed_parameters_only_after_the_change() {
        let mut history = begun(60);
        history.count(WEB, counters(60), at(1, 61));
        history.change(WEB, terms(5, 1));
        history.contest(WEB, true);
        history.count(WEB, counters(120), at(2, 62));
        let sums = history.take_unwritten()[0].sums;
        assert_eq!(sums.due, Span::from_secs(12 + 30));
        assert_eq!(sums.reserved, Span::from_secs(24 + 30));
        assert_eq!(sums.contested, Span::from_secs(60));
    }

    #[test]
    fn history_counts_service_restart_within_an_hour_as_unknown_time() {
        let mut history = begun(60);
        history.count(WEB, counters(600), at(10, 70));
        let rows = history.take_unwritten();
        let mut history = History::recover(rows);
        let start = Clocks { wall_ns: 70 * MINUTE + 1_000_000_000, ..at(3, 0) };
        history.begin(WEB, (&name("web"), OWNER, terms(2, 2)), Counters::default(), start);
        let later = Clocks { wall_ns: 71 * MINUTE + 1_000_000_000, ..at(4, 0) };
        history.count(WEB, counters(60), later);
        let sums = history.take_unwritten()[0].sums;
        assert_eq!(sums.existed, Span::from_secs(11 * 60 + 1));
        assert_eq!(sums.unknown(), Span::from_secs(1));
        assert_eq!(sums.delivered, Span::from_secs(300 + 30));
    }

    #[test]
    fn history_counts_whole_hours_without_the_service_as_unknown_time() {
        let mut history = begun(60);
        history.count(WEB, counters(600), at(10, 70));
        let mut rows = history.take_unwritten();
        let mut history = History::recover(rows.clone());
        // At 04:30, the last count was three hours and twenty minutes ago.
        history.begin(WEB, (&name("web"), OWNER, terms(2, 2)), Counters::default(), at(1, 270));
        history.count(WEB, counters(60), at(11, 280));
        for row in history.take_unwritten() {
            rows.retain(|old| old.start != row.start);
            rows.push(row);
        }
        assert_eq!(rows.iter().map(|row| row.start).collect::<Vec<_>>(), [1, 4]);
        let filled = fill(rows, 100);
        let shown: Vec<_> = filled
            .iter()
            .map(|row| (row.start, row.sums.existed.ns() / MINUTE, row.sums.known.ns() / MINUTE))
            .collect();
        assert_eq!(shown, [(1, 60, 10), (2, 60, 0), (3, 60, 0), (4, 40, 10)]);
        let days = by_day(filled);
        assert_eq!((days.len(), days[0].start, days[0].length), (1, 0, DAY));
        assert_eq!(days[0].sums.existed, Span::from_secs(220 * 60));
        assert_eq!(days[0].sums.known, Span::from_secs(20 * 60));
    }

    #[test]
    fn history_excludes_time_between_two_reservations_of_one_name() {
        let mut history = begun(60);
        history.end(WEB, Some(counters(60)), at(1, 61));
        let other = DomId::new(2);
        history.begin(other, (&name("web"), OWNER, terms(2, 2)), Counters::default(), at(20, 80));
        history.end(other, Some(counters(60)), at(21, 81));
        let rows = history.take_unwritten();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].sums.existed, Span::from_secs(120));
        assert_eq!(rows[0].sums.unknown(), Span::ZERO);
        history.begin(WEB, (&name("web"), OWNER, terms(2, 2)), Counters::default(), at(200, 260));
        history.count(WEB, Counters::default(), at(201, 261));
        let row = history.take_unwritten().remove(0);
        assert!(!row.continues && row.start == 4, "{row:?}");
    }

    #[test]
    fn number_of_ended_reservations_in_history_is_limited_per_hour() {
        let mut history = History::default();
        let end = |history: &mut History, number: usize, at: Clocks| {
            let name = name(&format!("a{number}"));
            history.begin(WEB, (&name, OWNER, terms(2, 2)), Counters::default(), at);
            history.end(WEB, Some(Counters::default()), at);
        };
        (0..MOST_ENDED + 500).for_each(|number| end(&mut history, number, at(0, 60)));
        assert_eq!(history.ended.len(), MOST_ENDED);
        end(&mut history, 0, at(60, 120));
        assert_eq!(history.ended.len(), 1, "rows of earlier hours are dropped");
    }

    #[test]
    fn time_after_backward_clock_step_counts_in_latest_history_hour() {
        let mut history = begun(130);
        history.count(WEB, counters(60), at(1, 131));
        history.count(WEB, counters(120), at(2, 12));
        let rows = history.take_unwritten();
        assert_eq!((rows.len(), rows[0].start), (1, 2));
        assert_eq!(rows[0].sums.known, Span::from_secs(120));
        // Time that a step of the clock skips is unknown, as is the time of a suspended host.
        history.count(WEB, counters(180), at(3, 171));
        let rows = history.take_unwritten();
        assert_eq!(rows.last().unwrap().sums.unknown(), Span::from_secs(39 * 60));
    }

    #[test]
    fn history_rows_are_written_again_after_a_failed_commit() {
        let mut history = begun(60);
        history.count(WEB, counters(60), at(1, 61));
        let failed = history.take_unwritten();
        history.count(WEB, counters(120), at(2, 62));
        history.put_back(failed.clone());
        let rows = history.take_unwritten();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].sums.known, Span::from_secs(120));
        history.put_back(failed.clone());
        assert_eq!(history.take_unwritten(), failed);
    }
}
