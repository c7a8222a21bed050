//! History of each vCPU: the times at which it was runnable, its reservations and its CPU time.
//! Also the checks of that history after a run.

use slackline_policy::Promise;
use slackline_units::{GridClock, Periods, Reservation, Span, Time, VcpuId};

use crate::books::Breach;

/// History of a vCPU from the time it joins until it leaves.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) vcpu: VcpuId,
    /// Reservations of the vCPU, each with the time from which it is in force.
    pub(crate) promises: Vec<(Time, Option<Promise>)>,
    /// True if the vCPU had a cap at some time.
    pub(crate) was_capped: bool,
    /// True if the vCPU was allowed to borrow unused budget of its siblings at some time.
    pub(crate) was_by_use: bool,
    /// Intervals in which the vCPU was runnable. The end is `None` while the vCPU is still
    /// runnable.
    pub(crate) awake: Vec<(Time, Option<Time>)>,
    /// Intervals in which the vCPU ran.
    pub(crate) runs: Vec<(Time, Time)>,
    /// Intervals in which the vCPU ran on reserved time.
    pub(crate) due: Vec<(Time, Time)>,
    /// Time at which the vCPU left. `None` if it did not leave.
    pub(crate) left: Option<Time>,
}

/// History of all vCPUs in a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) lives: Vec<Life>,
    /// Times at which the [`GridClock`] was set, each with the amount by which the clock was ahead
    /// of the host's time from then on.
    pub(crate) clocks: Vec<(Time, Span)>,
    pub(crate) end: Time,
}

impl Life {
    /// Adds an interval in which the vCPU ran.
    pub(crate) fn ran(&mut self, from: Time, to: Time, is_due: bool) {
        let lists = [Some(&mut self.runs), is_due.then_some(&mut self.due)];
        for list in lists.into_iter().flatten() {
            match list.last_mut() {
                Some(last) if last.1 == from => last.1 = to,
                _ => list.push((from, to)),
            }
        }
    }

    fn is_awake(&self, at: Time) -> bool {
        self.awake.iter().any(|&(from, until)| from <= at && until.is_none_or(|until| at <= until))
    }

    /// Divides the time from the vCPU's join until it leaves into intervals. In each interval one
    /// reservation is in force, and the vCPU either always runs on reserved time or never does.
    fn steps(&self, end: Time) -> Vec<Step> {
        let left = self.left.unwrap_or(end);
        let mut cuts: Vec<Time> = self.promises.iter().map(|&(from, _)| from).collect();
        cuts.extend(self.due.iter().flat_map(|&(from, to)| [from, to]));
        cuts.push(left);
        cuts.sort_unstable();
        cuts.dedup();
        let rate = |at: Time| {
            let last = self.promises.iter().rev().find(|&&(from, _)| from <= at);
            last.and_then(|(_, promise)| *promise).map(|promise| promise.reservation)
        };
        let mut due = Overlap { stretches: &self.due };
        let mut steps: Vec<Step> = Vec::new();
        for pair in cuts.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let had = due.within(from, to);
            let is_promise = self.promises.iter().any(|&(at, _)| at == from);
            steps.push(Step { from, to, rate: rate(from), had, is_promise, is_away: false });
        }
        steps
    }

    /// Returns each reservation of the vCPU with the interval in which it was in force.
    fn tenures(&self, end: Time) -> impl Iterator<Item = (Promise, Time, Time)> {
        let end = self.left.unwrap_or(end);
        let nexts = self.promises.iter().skip(1).map(|&(from, _)| from).chain([end]);
        let tenures = self.promises.iter().zip(nexts);
        tenures.filter_map(|(&(from, promise), until)| Some((promise?, from, until)))
    }
}

/// Interval in which one reservation is in force, while a vCPU is joined or between two joins. The
/// vCPU ran on reserved time during all of the interval, or during none of it.
#[derive(Clone, Copy)]
struct Step {
    from: Time,
    to: Time,
    /// Reservation in force. `None` if the vCPU had none.
    rate: Option<Reservation>,
    had: Span,
    /// True if a reservation was made at the start of the interval.
    is_promise: bool,
    is_away: bool,
}

impl Step {
    fn away(&self) -> Step {
        Step { had: Span::ZERO, is_promise: false, is_away: true, ..*self }
    }
}

/// Returns `slice × span / period` of the reservation `rate`, rounded up to whole nanoseconds.
fn earned(rate: Reservation, span: Span) -> i128 {
    let (slice, period) = (i128::from(rate.slice().ns()), i128::from(rate.period().ns()));
    (slice * i128::from(span.ns()) + period - 1) / period
}

/// Sorted intervals, for computing how much of them lies within a window. Windows must be queried
/// in ascending order.
struct Overlap<'a> {
    stretches: &'a [(Time, Time)],
}

impl Overlap<'_> {
    fn within(&mut self, from: Time, to: Time) -> Span {
        while let [(_, end), rest @ ..] = self.stretches
            && *end <= from
        {
            self.stretches = rest;
        }
        let inside = self.stretches.iter().take_while(|stretch| stretch.0 < to);
        inside.map(|&(start, end)| end.min(to) - start.max(from)).sum()
    }
}

/// Settings of the [`GridClock`] in the course of a run. Times must be queried in ascending order.
struct Clocks<'a> {
    sets: &'a [(Time, Span)],
    clock: GridClock,
}

impl Clocks<'_> {
    /// Returns the [`GridClock`] with the setting that was in force just before `at`.
    fn before(&mut self, at: Time) -> &GridClock {
        while let [(set, ahead), rest @ ..] = self.sets
            && *set < at
        {
            self.clock.set(*set, *ahead);
            self.sets = rest;
        }
        &self.clock
    }
}

impl History {
    /// Checks each period that lies wholly within the time of one reservation. The periods follow
    /// one another from the start of the reservation, or start at its phase. A vCPU that was
    /// runnable throughout must have received at least the period's budget, whatever other vCPUs
    /// did. A vCPU with a hard limit must not have received more than the budget. A vCPU that
    /// changed its parameters or rejoined may first have to pay back its excess, at most one slice
    /// in total.
    pub(crate) fn check_slices(&self) -> Result<(), Breach> {
        for (index, life) in self.lives.iter().enumerate() {
            let is_first = self.lives[..index].iter().all(|before| before.vcpu != life.vcpu);
            for (nth, tenure) in life.tenures(self.end).enumerate() {
                let advance = if is_first && nth == 0 { Span::ZERO } else { self.largest(life) };
                self.check_tenure(life, tenure, advance)?;
            }
        }
        Ok(())
    }

    fn check_tenure(
        &self,
        life: &Life,
        (promise, from, until): (Promise, Time, Time),
        advance: Span,
    ) -> Result<(), Breach> {
        let periods = Periods { reservation: promise.reservation, phase: promise.phase };
        let is_set = |from: Time, until: Time| {
            self.clocks.iter().any(|&(set, _)| from <= set && set < until)
        };
        let mut clocks = Clocks { sets: &self.clocks, clock: GridClock::default() };
        let awake: Vec<_> =
            life.awake.iter().map(|&(from, until)| (from, until.unwrap_or(self.end))).collect();
        let mut got = Overlap { stretches: &life.runs };
        let mut wanted = Overlap { stretches: &awake };
        let (mut start, mut lacking, mut all_awake) = (from, Span::ZERO, true);
        let mut end = periods.first_end(from, clocks.before(from));
        while end <= until {
            let (vcpu, slice) = (life.vcpu, periods.worth(start, end));
            let had = got.within(start, end);
            let is_awake = wanted.within(start, end) == end - start;
            if !is_awake && periods.phase.is_some() && is_set(from, end) {
                break; // A vCPU that was blocked adopts the new grid at its next wake.
            }
            all_awake &= is_awake;
            lacking += slice.left_after(had);
            if all_awake && lacking > advance {
                return Err(Breach::ShortSlice(vcpu, start));
            }
            if had > slice && promise.exact {
                return Err(Breach::OverSlice(vcpu, start));
            }
            if advance.is_zero() {
                (lacking, all_awake) = (Span::ZERO, true); // Each period is checked alone.
            }
            (start, end) = (end, periods.next_end(end, clocks.before(end)));
        }
        Ok(())
    }

    /// Returns the largest slice that the vCPU of `life` reserved at any time, including before it
    /// left and rejoined.
    fn largest(&self, life: &Life) -> Span {
        let lives = self.lives.iter().filter(|other| other.vcpu == life.vcpu);
        let promises = lives.flat_map(|life| &life.promises);
        let slices = promises.filter_map(|(_, promise)| Some((*promise)?.reservation.slice()));
        slices.max().unwrap_or(Span::ZERO)
    }

    /// Checks that a vCPU never receives more than its reservations allow, however often it changes
    /// them, leaves and rejoins. From the start of any reservation on, the bound is
    /// `slice × elapsed / period`, added up over its reservations, plus one slice. While the vCPU
    /// is away, its excess decays at the rate of its last reservation.
    pub(crate) fn check_advances(&self) -> Result<(), Breach> {
        // A vCPU that may borrow can exceed this bound. Its domain does not.
        let is_alone =
            |vcpu: VcpuId| !self.lives.iter().any(|life| life.vcpu == vcpu && life.was_by_use);
        let vcpus = self.lives.iter().map(|life| life.vcpu);
        let mut vcpus: Vec<VcpuId> = vcpus.filter(|vcpu| is_alone(*vcpu)).collect();
        vcpus.sort_unstable();
        vcpus.dedup();
        for vcpu in vcpus {
            let lives: Vec<_> = self.lives.iter().filter(|life| life.vcpu == vcpu).collect();
            let most = i128::from(self.largest(lives[0]).ns());
            let mut steps: Vec<Step> = Vec::new();
            for life in lives {
                let begins = life.promises[0].0;
                steps.extend(steps.last().map(|last| Step {
                    from: last.to,
                    to: begins,
                    ..last.away()
                }));
                steps.extend(life.steps(self.end));
            }
            let promised = (0..steps.len()).filter(|&index| steps[index].is_promise);
            for first in promised {
                let mut advance = 0;
                for step in &steps[first..] {
                    let Some(rate) = step.rate else { break };
                    advance -= earned(rate, step.to - step.from);
                    if step.is_away {
                        advance = advance.max(0);
                    }
                    advance += i128::from(step.had.ns());
                    if advance > most {
                        return Err(Breach::Advanced(vcpu, step.from));
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks the waits of runnable vCPUs if all vCPUs are equal and a timeslice lasts at most
    /// `turn`. Each other vCPU that was runnable when a wait began has at most one timeslice before
    /// the wait ends. All CPUs are busy in the meantime. So a wait is at most
    /// `(runnable - 1) * turn / CPUs`.
    pub(crate) fn check_waits(&self, turn: Option<Span>, cpus: usize) -> Result<(), Breach> {
        for life in &self.lives {
            for (from, until) in waits(life, self.end) {
                let awake = self.lives.iter().filter(|life| life.is_awake(from)).count() as u64;
                let waited = (until - from) * cpus as u64;
                if turn.is_some_and(|turn| waited > turn * (awake - 1)) {
                    return Err(Breach::Waited(life.vcpu, from));
                }
            }
        }
        Ok(())
    }
}

/// Returns the intervals in which a vCPU was runnable and did not run.
fn waits(life: &Life, end: Time) -> Vec<(Time, Time)> {
    let mut waits = Vec::new();
    for &(from, until) in &life.awake {
        let until = until.unwrap_or(end);
        let mut since = from;
        for &(start, stop) in life.runs.iter().filter(|run| from < run.1 && run.0 < until) {
            waits.push((since, start.max(since)));
            since = stop;
        }
        waits.push((since, until.max(since)));
    }
    waits.retain(|(from, until)| from < until);
    waits
}
