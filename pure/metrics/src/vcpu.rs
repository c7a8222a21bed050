//! Running sums of one vCPU.
//!
//! - The *delivered time* is the sum of the CPU time used in its run intervals. A run interval that
//!   begins before the end of the warm-up counts in proportion. The shares *delivered* and
//!   *promised* cover the same time as the error, which the module `share` defines.
//! - *Waiting* is the time in which the vCPU was runnable and did not run. On a live host it
//!   includes time within a run interval in which another thread had the CPU.
//! - *Wake to run* lasts from a wake to the start of the next run interval. A vCPU that is runnable
//!   when it joins has not woken: its first timeslice depends on the policy's plan. A wake does not
//!   count if the vCPU blocks again before it runs. A wake after which the vCPU still waits at the
//!   end of the run counts until the end.
//! - A *switch* is a run interval that does not continue the previous run interval on its CPU.
//!   Either another vCPU ran in between, or there is a gap. A *migration* is a switch to a vCPU
//!   that ran on another CPU before.
//! - A *job* counts if it was released after the warm-up, and was finished or its deadline has
//!   passed. A job is late if it was not finished by its deadline. Only late jobs have a lateness.
//!   The lateness of a job that is never finished lasts until the vCPU leaves or the run ends.

use slackline_trace::{Knowledge, OverheadKind};
use slackline_units::{CpuId, GridClock, Reservation, Span, Time, VcpuId};

use crate::cumulative::Cumulative;
use crate::distribution::Tally;
use crate::jobs::Jobs;
use crate::promise::{Balance, Deliveries, ReservedRun, TimedReservation};
use crate::seconds::Spans;
use crate::share::Account;
use crate::split::{Stretch, ppm, proportion};
use crate::{OverheadTimes, VcpuSummary};

/// Sums and state of one vCPU.
#[derive(Clone, Debug)]
pub(crate) struct VcpuMeter {
    warmup: Time,
    knows: Knowledge,
    /// True if the policy can begin periods of the vCPU at its wakes.
    begins_at_wake: bool,
    /// Time at which the vCPU joined. `None` while it is not joined.
    joined: Option<Time>,
    /// Time at which the vCPU became runnable. `None` while it is blocked.
    awake_since: Option<Time>,
    /// Time at which the vCPU was paused. `None` if it is not paused.
    paused_since: Option<Time>,
    /// Time of the vCPU's last wake. `None` if the vCPU has run since that wake.
    woken: Option<Time>,
    last_cpu: Option<CpuId>,
    /// Time at which the vCPU's current wait began. The vCPU waits if it is runnable and not
    /// running, according to the records so far. `None` if it does not wait.
    waits_since: Option<Time>,
    wait_worst: Span,
    delivered: Span,
    overrun: Span,
    present: Span,
    awake: Span,
    switches: u64,
    migrations: u64,
    wake_to_run: Tally,
    /// Reservation in force, with the time at which it took effect.
    promised: Option<TimedReservation>,
    /// Last recorded reservation. `None` if no reservation was recorded yet, and `Some(None)` if
    /// the last record took the reservation away. The field `has_changed` is true if the
    /// reservation changed after the warm-up.
    terms: Option<Option<Reservation>>,
    has_changed: bool,
    /// Entitlement of all reservations so far: the sum of slice / period × time in force.
    entitled: Span,
    /// Part of `entitled` for the time in which the vCPU was not blocked.
    due: Span,
    /// Value of `awake` when the reservation in force took effect.
    awake_before: Span,
    /// Last reservation that the vCPU had. The value is kept when the vCPU loses its reservation.
    last_promised: Option<TimedReservation>,
    was_present: bool,
    deliveries: Option<Box<Deliveries>>,
    jobs: Option<Box<Jobs>>,
    moved: u64,
    boosts: Boosts,
    slowed: Span,
    spun: Span,
    stopped: Span,
    /// Part of `stopped` in which the vCPU was paused, because it had escaped its limit.
    escaped: Span,
    overhead: OverheadTimes,
    second: Spans,
    ten_seconds: Spans,
}

/// Sums over the boosts of a vCPU.
#[derive(Clone, Copy, Debug, Default)]
struct Boosts {
    count: u64,
    used_up: u64,
    time: Span,
    /// True while the vCPU runs with a boost that was counted already.
    is_counted: bool,
}

impl VcpuMeter {
    pub(crate) fn new(warmup: Time, knows: Knowledge, begins_at_wake: bool) -> VcpuMeter {
        VcpuMeter {
            warmup,
            knows,
            begins_at_wake,
            joined: None,
            awake_since: None,
            paused_since: None,
            woken: None,
            last_cpu: None,
            waits_since: None,
            wait_worst: Span::ZERO,
            delivered: Span::ZERO,
            overrun: Span::ZERO,
            present: Span::ZERO,
            awake: Span::ZERO,
            switches: 0,
            migrations: 0,
            wake_to_run: Tally::default(),
            promised: None,
            terms: None,
            has_changed: false,
            entitled: Span::ZERO,
            due: Span::ZERO,
            awake_before: Span::ZERO,
            last_promised: None,
            was_present: false,
            deliveries: None,
            jobs: None,
            moved: 0,
            boosts: Boosts::default(),
            slowed: Span::ZERO,
            spun: Span::ZERO,
            stopped: Span::ZERO,
            escaped: Span::ZERO,
            overhead: OverheadTimes::default(),
            second: Spans::new(Span::from_secs(1)),
            ten_seconds: Spans::new(Span::from_secs(10)),
        }
    }

    /// Sets the time from which the vCPU's sums count. Must be called before anything is counted.
    pub(crate) fn count_from(&mut self, warmup: Time) {
        self.warmup = warmup;
        for spans in [&mut self.second, &mut self.ten_seconds] {
            if let Some(begins) = spans.begins() {
                spans.begin(begins.max(warmup));
            }
        }
        if let Some(deliveries) = &mut self.deliveries {
            deliveries.count_from(warmup);
        }
    }

    pub(crate) fn joined(&mut self, at: Time) {
        self.joined = Some(at);
        self.was_present = true;
        self.second.begin(at.max(self.warmup));
        self.ten_seconds.begin(at.max(self.warmup));
        if let Some(deliveries) = &mut self.deliveries {
            deliveries.joined(at, self.knows.sleep);
        }
    }

    pub(crate) fn promised(&mut self, promised: TimedReservation, clock: GridClock) {
        let before = self.terms.replace(promised.reservation);
        let is_other = before.is_some_and(|before| before != promised.reservation);
        self.has_changed |= is_other && promised.at > self.warmup;
        self.entitle_until(promised.at);
        self.promised = Some(promised).filter(|promised| promised.reservation.is_some());
        self.last_promised = self.promised.or(self.last_promised);
        if self.last_promised.is_none() {
            return;
        }
        let is_asleep = self.knows.sleep && self.awake_since.is_none();
        let (warmup, knows) = (self.warmup, self.knows);
        let begins_at_wake = self.begins_at_wake;
        let deliveries = || {
            let new = Deliveries::new(warmup, is_asleep, knows, clock);
            Box::new(if begins_at_wake { new.with_periods_at_wakes() } else { new })
        };
        self.deliveries.get_or_insert_with(deliveries).promise(promised);
    }

    /// Records that the clock was set, which moves the grid of periods with a phase.
    pub(crate) fn clock_set(&mut self, at: Time, ahead: Span) {
        if let Some(deliveries) = &mut self.deliveries {
            deliveries.clock_set(at, ahead);
        }
    }

    pub(crate) fn woke(&mut self, at: Time) {
        self.paused_since = None;
        self.awake_since = Some(at);
        self.waits_since = Some(at);
        self.boosts.is_counted = false;
        self.woken = (self.joined != Some(at)).then_some(at);
        if let Some(deliveries) = &mut self.deliveries {
            deliveries.woke(at);
        }
    }

    pub(crate) fn paused(&mut self, at: Time) {
        self.blocked(at);
        self.paused_since = Some(at);
    }

    pub(crate) fn blocked(&mut self, at: Time) {
        self.woken = None;
        self.waits_since = None;
        self.awake += measured(self.awake_since.take(), at, self.warmup);
        // A host that does not observe blocks records a block only for a vCPU that has finished.
        if let Some(deliveries) = self.deliveries.as_mut().filter(|_| self.knows.sleep) {
            deliveries.blocked(at);
        }
    }

    /// Adds a run interval of the vCPU on `cpu`. `is_switch` is true if the run interval does not
    /// continue the previous run interval on that CPU. Returns the CPU time that the run interval
    /// used after the warm-up.
    pub(crate) fn ran(&mut self, ran: ReservedRun, cpu: CpuId, is_switch: bool) -> Span {
        let Stretch { from, to, used } = ran.stretch;
        let mut measured = used;
        self.waited_until(from);
        // A run interval can be recorded late, when the vCPU has blocked and woken again.
        self.waits_since = self.awake_since.map(|since| since.max(to));
        if from >= self.warmup {
            self.switches += u64::from(is_switch);
            self.migrations += u64::from(self.last_cpu.is_some_and(|last| last != cpu));
            self.overrun += ran.late;
        } else {
            measured = ran.stretch.used_from(self.warmup);
            self.overrun += ran.late.min(to.since(self.warmup));
        }
        self.delivered += measured;
        self.second.ran(ran.stretch);
        self.ten_seconds.ran(ran.stretch);
        self.last_cpu = Some(cpu);
        // A run interval that ended before the wake does not answer the wake.
        if let Some(woken) = self.woken.filter(|&woken| to > woken) {
            self.woken = None;
            self.first_ran(woken, from);
        }
        if let Some(deliveries) = &mut self.deliveries {
            deliveries.ran(ran);
        }
        measured
    }

    /// Adds CPU time that the vCPU received while another program controlled its threads. This CPU
    /// time counts as delivered, but is no run interval.
    pub(crate) fn elsewhere(&mut self, stretch: Stretch) {
        self.delivered += stretch.used_from(self.warmup);
        self.second.ran(stretch);
        self.ten_seconds.ran(stretch);
        if let Some(deliveries) = &mut self.deliveries {
            deliveries.ran(ReservedRun { stretch, late: Span::ZERO, due: false });
        }
    }

    pub(crate) fn moved(&mut self, at: Time, bytes: u64) {
        if at >= self.warmup {
            self.moved = self.moved.saturating_add(bytes);
        }
    }

    /// Adds CPU time spent spinning on a lock, up to `at`.
    pub(crate) fn spun(&mut self, at: Time, used: Span) {
        if at >= self.warmup {
            self.spun += used;
        }
    }

    /// Adds an interval in which the vCPU had work and was stopped. If the vCPU is paused at
    /// present, the stop was for an escape from its limit.
    pub(crate) fn stopped(&mut self, from: Time, to: Time) {
        self.stopped += to.since(from.max(self.warmup));
        if let Some(since) = self.paused_since {
            self.escaped += to.since(from.max(since).max(self.warmup));
        }
    }

    /// Adds an interval in which the vCPU ran with a boost. `used_up` is true if the vCPU ran on
    /// after the boost ended.
    pub(crate) fn boosted(&mut self, (from, to): (Time, Time), used_up: bool) {
        self.boosts.time += to.since(from.max(self.warmup));
        if from < self.warmup {
            return;
        }
        self.boosts.count += u64::from(!self.boosts.is_counted);
        self.boosts.used_up += u64::from(used_up);
        self.boosts.is_counted = !used_up;
    }

    /// Adds an interval in which the vCPU ran at less than full speed. `work` is the time that the
    /// work of the interval would have taken at full speed.
    pub(crate) fn slowed(&mut self, from: Time, to: Time, work: Span) {
        let stretch = Stretch { from, to, used: (to - from).left_after(work) };
        self.slowed += stretch.used_from(self.warmup);
    }

    /// Adds an interval in which the vCPU paid overhead.
    pub(crate) fn spent(&mut self, kind: OverheadKind, from: Time, to: Time) {
        self.overhead.add(kind, to.since(from.max(self.warmup)));
    }

    pub(crate) fn job(&mut self, released: Time, deadline: Time, done: Time) {
        if done >= self.warmup {
            self.jobs.get_or_insert_default().finished(self.warmup, (released, deadline, done));
        }
    }

    /// Adds a job whose deadline has passed and that will not be finished.
    pub(crate) fn unfinished(&mut self, released: Time, deadline: Time, at: Time) {
        if released >= self.warmup {
            self.jobs.get_or_insert_default().unfinished(deadline, at);
        }
    }

    /// Ends all waits and periods in progress, because the vCPU left or the run ended.
    pub(crate) fn over(&mut self, at: Time) {
        if self.joined.is_none() {
            return;
        }
        self.present += measured(self.joined.take(), at, self.warmup);
        self.second.over(at);
        self.ten_seconds.over(at);
        self.waited_until(at);
        self.awake += measured(self.awake_since.take(), at, self.warmup);
        if let Some(woken) = self.woken.take() {
            self.first_ran(woken, at);
        }
        self.entitle_until(at);
        self.promised = None;
        if let Some(deliveries) = &mut self.deliveries {
            deliveries.over(at);
        }
    }

    /// Returns the results of the vCPU with this id, name and domain. `None` if the vCPU never
    /// joined.
    pub(crate) fn finish(self, id: VcpuId, (name, domain): (&str, &str)) -> Option<VcpuSummary> {
        if !self.was_present {
            return None;
        }
        let promised = self.last_promised;
        let exact = promised.is_some_and(|promised| promised.exact);
        let balance = self.deliveries.map(|deliveries| deliveries.finish(exact));
        let Balance { long_run, judged } = balance.unwrap_or_default();
        let there =
            Account { received: self.delivered, promised: self.entitled, length: self.present };
        let share = long_run.whole.filter(|_| !self.has_changed).unwrap_or(there);
        let jobs = self.jobs.map(|jobs| *jobs).unwrap_or_default();
        let asleep = self.present.left_after(self.awake).left_after(self.escaped);
        // On a live host, run times and runnable times come from different sources. A vCPU that
        // runs nearly always may seem to have run a little longer than it was runnable.
        let throttled = self.stopped.left_after(self.escaped);
        let waiting = self.awake.left_after(self.delivered).left_after(throttled);
        let judges = self.knows.sleep && self.knows.stretches;
        Some(VcpuSummary {
            id,
            name: name.to_string(),
            domain: domain.to_string(),
            promised: promised.and_then(|promised| promised.reservation),
            promised_share_ppm: promised.map(|_| ppm(share.promised, share.length)),
            exact,
            entitled: self.entitled,
            due: if self.knows.sleep { self.due } else { self.entitled },
            delivered: self.delivered,
            present: self.present,
            delivered_ppm: ppm(share.received, share.length),
            error_ppm: long_run.error_ppm,
            second_error: long_run.second_error,
            deadlines: judges.then(|| judged.as_ref().map_or(0, |judged| judged.count)),
            misses: judges.then(|| judged.as_ref().map_or(0, |judged| judged.misses)),
            miss_time: judged.as_ref().and_then(|judged| judged.miss_time),
            late: judges.then(|| judged.as_ref().map_or(Span::ZERO, |judged| judged.late)),
            miss_time_of_slice: judged.as_ref().and_then(|judged| judged.of_slice),
            wake_to_run: self.wake_to_run.distribution().filter(|_| judges),
            wake_to_run_p99: self.wake_to_run.p99_interval().filter(|_| judges),
            switches: self.switches,
            migrations: self.migrations,
            waiting: self.knows.sleep.then_some(waiting),
            wait_worst: judges.then_some(self.wait_worst),
            stopped: Some(self.stopped),
            escaped: self.escaped,
            asleep: self.knows.sleep.then_some(asleep),
            jobs: jobs.count,
            jobs_due: jobs.due,
            jobs_late: jobs.late,
            jobs_done: jobs.done,
            moved: self.moved,
            boosts: self.boosts.count,
            false_boosts: self.boosts.used_up,
            boosted: self.boosts.time,
            slowed: Some(self.slowed),
            spun: Some(self.spun),
            overhead: self.knows.overhead.then_some(self.overhead),
            second: self.second.least_and_most().filter(|_| self.knows.stretches),
            ten_seconds: self.ten_seconds.least_and_most().filter(|_| self.knows.stretches),
            job_lateness: jobs.lateness.distribution(),
            response: jobs.response.distribution(),
            overrun: self.overrun,
        })
    }

    /// Returns the cumulative distributions of the vCPU, labelled with `name`.
    pub(crate) fn cumulative(&self, name: &str) -> Vec<Cumulative> {
        let jobs = self.jobs.as_ref();
        let tallies = [
            ("wake to run", Some(&self.wake_to_run)),
            ("response", jobs.map(|jobs| &jobs.response)),
            ("job lateness", jobs.map(|jobs| &jobs.lateness)),
        ];
        let all = tallies.into_iter();
        all.filter_map(|(metric, tally)| Cumulative::of(name, metric, tally?)).collect()
    }

    /// Ends the current wait of the vCPU at `at`. Does nothing if the vCPU does not wait.
    fn waited_until(&mut self, at: Time) {
        let waited = self.waits_since.take().map(|since| since.max(self.warmup));
        let waited = waited.filter(|&since| since < at).map(|since| at - since);
        self.wait_worst = self.wait_worst.max(waited.unwrap_or_default());
    }

    fn first_ran(&mut self, woken: Time, at: Time) {
        if woken >= self.warmup {
            self.wake_to_run.add(at.since(woken));
        }
    }

    /// Adds the entitlement from the reservation in force, `slice × elapsed / period`, up to `at`.
    fn entitle_until(&mut self, at: Time) {
        let awake = self.awake + measured(self.awake_since, at, self.warmup);
        let awake_in_force = awake.left_after(std::mem::replace(&mut self.awake_before, awake));
        let Some(promised) = self.promised else { return };
        let Some(reservation) = promised.reservation else { return };
        let in_force = measured(Some(promised.at), at, self.warmup);
        let part = |of: Span| proportion(reservation.slice(), of, reservation.period());
        self.entitled += part(in_force);
        self.due += part(awake_in_force);
    }
}

/// Returns the time from `since` to `at`, without the part in the warm-up. Zero if `since` is
/// `None`.
fn measured(since: Option<Time>, at: Time, warmup: Time) -> Span {
    since.map_or(Span::ZERO, |since| at.since(since.max(warmup)))
}
