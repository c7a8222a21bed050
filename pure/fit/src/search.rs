//! Search for a reservation that fits a task set: with the smallest slice, with the largest period,
//! or with room for the largest number of VMs.

use slackline_units::{CpuShare, Reservation, Span};
use thiserror::Error;

use crate::edf::DemandShortfall;
use crate::tasks::LONGEST;
use crate::{
    PeriodicSupply, PeriodicTask, Proof, Refutation, TaskScheduler, TaskSet, check, prove,
};

/// Number of periods above which the search for the largest period takes longer steps. If the share
/// barely exceeds the utilisation, a search takes up to 1.5 s for 8 tasks and 45 s for 200 tasks
/// (measured without optimisation).
const MOST_PERIODS: u64 = 20_000;

/// Maximum number of periods that are tried between two longer steps.
const FINE_PERIODS: usize = 20_000;

/// Maximum number of intervals that are tested before a proof is searched for.
const MOST_SHORTFALLS: usize = 32;

/// Period with which [`least_share`] computes the smallest share. Only simulated policies accept so
/// short a period. With a longer period, such as a daemon accepts, the tasks need a larger share.
pub const SHORT_PERIOD: Span = Span::from_us(100);

/// Number of periods that [`most_vms`] tries between a period and half of that period.
const PERIODS_PER_OCTAVE: u64 = 32;

/// Longest delay for which [`fit_delay`] can find a reservation: one nanosecond less than an hour.
/// The delay is tested by means of a task whose deadline is one nanosecond longer than the delay. A
/// deadline may be an hour at most.
pub const LONGEST_DELAY: Span = Span::from_ns(LONGEST.ns() - 1);

/// Goal of a search for a reservation of a task set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Find the smallest slice for a given period.
    Slice {
        /// Period of the reservation.
        period: Span,
    },
    /// Find the largest period for a given share. The period is a multiple of the step.
    Period {
        /// Share of one CPU, at most a whole CPU.
        share: CpuShare,
    },
    /// Find the reservation with which the largest number of equal VMs fits on one CPU. A part of
    /// that CPU is never reserved. [`TriedPeriods`] says which periods the search tries.
    Vms {
        /// Part of the CPU that is never reserved.
        reserve: CpuShare,
        /// Limits of the reservations that the search tries first.
        limits: ReservationLimits,
    },
}

/// Limits of the reservations that the search for the largest number of VMs tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationLimits {
    /// Shortest period of a reservation.
    pub period: Span,
    /// Shortest slice. The rest of the period is at least as long. Less than the shortest period.
    pub slice: Span,
}

impl ReservationLimits {
    /// Limits for simulated policies, which accept every reservation. With periods below 10 us,
    /// context switches would take most of the CPU time.
    pub const SIMULATED: ReservationLimits =
        ReservationLimits { period: Span::from_us(10), slice: Span::ZERO };
}

/// Reservation with which all jobs meet their deadlines, and the reservation one step below, which
/// was refuted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Reservation that the search found.
    pub reservation: Reservation,
    /// Proof that all jobs meet their deadlines in `reservation`.
    pub proof: Proof,
    /// Next reservation that the search refuted, with the reason why it has no proof. Depending on
    /// the goal, its slice is one step smaller, its period is one step longer, or its share is
    /// smaller by so much that one more VM fits. `None` if there is no such reservation.
    pub below: Option<(Reservation, Refutation)>,
    /// Periods that the search tried. `None` unless the goal is [`Goal::Vms`].
    pub tried: Option<TriedPeriods>,
}

/// Periods that the search for the largest number of VMs tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TriedPeriods {
    /// Number of periods that were tried.
    pub count: u64,
    /// Shortest of the tried periods.
    pub shortest: Span,
    /// Longest of the tried periods.
    pub longest: Span,
    /// Step of the tried slices. It is at most the period.
    pub step: Span,
    /// Shortest slice that was tried. Zero if each slice was allowed.
    pub shortest_slice: Span,
    /// True if the utilisation of the tasks excludes one more VM, whatever the period.
    pub is_most: bool,
}

/// Reason why no reservation fits a task set.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NoFit {
    /// The tasks miss deadlines even if they have a whole CPU.
    #[error("the tasks miss deadlines even with a whole CPU")]
    WholeCpu(Refutation),
    /// With this share the tasks miss deadlines with each period that was tried.
    #[error("with this share no period of at least {shortest} has a proof")]
    Share {
        /// Shortest period that was tried.
        shortest: Span,
    },
    /// The step of the search is zero, or is longer than the period.
    #[error("the step {step} must be greater than zero and at most the period {period}")]
    Step {
        /// Step by which the search changes the slice.
        step: Span,
        /// Period of the reservation.
        period: Span,
    },
}

/// Returns the reservation that reaches the goal. For [`Goal::Slice`] and [`Goal::Vms`], slices are
/// multiples of `step`. For [`Goal::Period`], the period is a multiple of `step`.
///
/// # Errors
/// If no reservation reaches the goal, or if the step is not valid.
pub fn find(tasks: &TaskSet, goal: Goal, step: Span) -> Result<Fit, NoFit> {
    match goal {
        Goal::Slice { period } => smallest_slice(tasks, period, step),
        Goal::Period { share } => largest_period(tasks, share, step),
        Goal::Vms { reserve, limits } => most_vms(tasks, reserve, step, limits),
    }
}

/// Returns the usual periods for a task set, shortest first. They are an eighth, a quarter, a half,
/// one and two times the shortest of the tasks' periods. Each is a whole number of microseconds.
#[must_use]
pub fn usual_periods(tasks: &TaskSet) -> Vec<Span> {
    let eighths = [1, 2, 4, 8, 16];
    let shortest = tasks.shortest_period();
    let period = |eighth| Span::from_us(shortest * eighth / Span::from_us(8));
    eighths.into_iter().map(period).filter(|period| !period.is_zero()).collect()
}

/// Returns the periods that [`most_vms`] tries, longest first. They range from twice the shortest
/// period of the tasks down to `least`. Each is 1.5 to 3.2 % shorter than the one before it, as far
/// as whole microseconds permit. A part of the shortest period, such as a seventh, is tried too.
fn periods_of_most_vms(tasks: &TaskSet, least: Span) -> Vec<Span> {
    let us = Span::from_us(1);
    let shortest = tasks.shortest_period();
    let mut periods = Vec::new();
    let mut octave = shortest * 2;
    while octave >= least {
        periods.extend((0..PERIODS_PER_OCTAVE).map(|part| {
            Span::from_us(octave * (2 * PERIODS_PER_OCTAVE - part) / (us * 2 * PERIODS_PER_OCTAVE))
        }));
        octave = octave / 2u64;
    }
    periods.extend((1..=PERIODS_PER_OCTAVE).map(|part| Span::from_us(shortest / part / us)));
    periods.retain(|&period| period >= least);
    if periods.is_empty() {
        periods.push(least);
    }
    periods.sort_unstable_by(|one, other| other.cmp(one));
    periods.dedup();
    periods
}

/// Returns the reservation with which the largest number of equal VMs fits on one CPU. If several
/// of the [tried periods](TriedPeriods) fit the same number of VMs, the longest is chosen, because
/// it has the fewest context switches. The reservation below the answer ([`Fit::below`]) has the
/// same period, and an equal share of the CPU for one more VM. If no reservation within `limits`
/// suffices, the search is repeated with [`ReservationLimits::SIMULATED`].
///
/// # Errors
/// If no reservation fits, or if the step is not valid.
pub fn most_vms(
    tasks: &TaskSet,
    reserve: CpuShare,
    step: Span,
    limits: ReservationLimits,
) -> Result<Fit, NoFit> {
    if step.is_zero() {
        return Err(NoFit::Step { step, period: tasks.shortest_period() });
    }
    let mut best: Option<(u64, Fit)> = None;
    let (mut count, mut shortest, mut is_most) = (0, LONGEST, false);
    let periods = periods_of_most_vms(tasks, limits.period);
    for &period in &periods {
        let vms = best.as_ref().map_or(0, |(vms, _)| *vms) + 1;
        if part_of_cpu(reserve, vms, LONGEST).is_none_or(|part| tasks.fills(part)) {
            is_most = true;
            break;
        }
        (count, shortest) = (count + 1, period);
        // One more VM than before needs a slice of this length, so most periods need one proof.
        let part = part_of_cpu(reserve, vms, period).map_or(Span::ZERO, |part| part.slice());
        if let Some(fit) = smallest_slice_up_to(tasks, (part, period), step.min(period), limits) {
            best = Some((vms_per_cpu(fit.reservation, reserve), fit));
        }
    }
    let mut fit = match best {
        Some((_, fit)) => fit,
        None if limits != ReservationLimits::SIMULATED => {
            return most_vms(tasks, reserve, step, ReservationLimits::SIMULATED);
        }
        None => {
            let period = Span::from_us(tasks.shortest_period() / Span::from_us(2));
            let period = period.max(limits.period);
            smallest_slice(tasks, period, step.min(period))?
        }
    };
    let (longest, shortest_slice) = (periods[0], limits.slice);
    fit.tried = Some(TriedPeriods { count, shortest, longest, step, shortest_slice, is_most });
    let vms = vms_per_cpu(fit.reservation, reserve);
    fit.below = part_of_cpu(reserve, vms + 1, fit.reservation.period())
        .and_then(|part| Some((part, prove(tasks, part).err()?)));
    Ok(fit)
}

/// Returns the smallest slice within the limits with which all jobs meet their deadlines. `None` if
/// the largest slice within the limits of at most `most` does not suffice.
fn smallest_slice_up_to(
    tasks: &TaskSet,
    (most, period): (Span, Span),
    step: Span,
    limits: ReservationLimits,
) -> Option<Fit> {
    let high = most.min(period - limits.slice) / step;
    let least = limits.slice.ns().div_ceil(step.ns()).max(1);
    if high < least {
        return None;
    }
    let proof = check(tasks, Reservation::new(step * high, period).ok()?).ok()?;
    Some(halve(tasks, (step, period), (least - 1, high), proof))
}

/// Returns the reservation with a period that each of `vms` equal VMs can have on one CPU. The
/// slice is rounded down. `None` if it would be shorter than a nanosecond.
fn part_of_cpu(reserve: CpuShare, vms: u64, period: Span) -> Option<Reservation> {
    let capacity = u128::from(CpuShare::ONE.less(reserve).ppm());
    let ns = u128::from(period.ns()) * capacity / (u128::from(vms) * 1_000_000);
    Reservation::new(Span::from_ns(u64::try_from(ns).ok()?), period).ok()
}

/// Returns the smallest slice with which all jobs meet their deadlines in a given period. The slice
/// is a multiple of `step`.
///
/// # Errors
/// If a whole CPU does not suffice, or the step is not valid.
pub fn smallest_slice(tasks: &TaskSet, period: Span, step: Span) -> Result<Fit, NoFit> {
    if step.is_zero() || step > period {
        return Err(NoFit::Step { step, period });
    }
    let whole = Reservation::new(period, period).expect("a period is not zero");
    let proof = prove(tasks, whole).map_err(NoFit::WholeCpu)?;
    Ok(halve(tasks, (step, period), (0, period.ns().div_ceil(step.ns())), proof))
}

/// Returns the smallest slice with a proof, in steps from above `low` to `high`. `proof` is the
/// proof of `high`. Each round halves the range.
fn halve(
    tasks: &TaskSet,
    (step, period): (Span, Span),
    (mut low, mut high): (u64, u64),
    mut proof: Proof,
) -> Fit {
    let of = |steps: u64| {
        Reservation::new((step * steps).min(period), period).expect("a slice within the period")
    };
    let mut refuted = None;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match check(tasks, of(middle)) {
            Ok(found) => (high, proof) = (middle, found),
            Err(_) => {
                low = middle;
                refuted = Some(of(middle));
            }
        }
    }
    let below = refuted.and_then(|below| Some((below, prove(tasks, below).err()?)));
    Fit { reservation: of(high), proof, below, tried: None }
}

/// Returns the largest period with which a share suffices. The period is a multiple of `step`. With
/// a period longer than the longest possible one, a task would be without CPU time for too long. If
/// the longest possible period has more than 20,000 steps, the search first takes
/// longer steps, each a multiple of `step`, and then searches above the period that it found in
/// steps of `step`. It can then miss a larger period that suffices although a smaller one does not.
///
/// # Errors
/// If no period fits the share, or if the step is zero or longer than the longest possible period.
pub fn largest_period(tasks: &TaskSet, share: CpuShare, step: Span) -> Result<Fit, NoFit> {
    let longest = longest_period(tasks, share);
    if step.is_zero() || (step > longest && !longest.is_zero()) {
        return Err(NoFit::Step { step, period: longest });
    }
    // A slice is rounded down, so no period has a larger share.
    let none = NoFit::Share { shortest: step };
    if share < CpuShare::ONE && reservation_of(share, LONGEST).is_none_or(|all| tasks.fills(all)) {
        return Err(none);
    }
    let steps = longest / step;
    let stride = steps.div_ceil(MOST_PERIODS).max(1);
    let mut misses = KnownShortfalls { tasks, known: Vec::new() };
    let mut proof_of = |steps: u64| misses.prove(reservation_of(share, step * steps)?);
    // The periods below one stride are searched too, since a short period suffices most often.
    let rough = (1..=steps / stride).rev().map(|strides| strides * stride);
    let mut rough = rough.chain((1..stride).rev().take(FINE_PERIODS));
    let found = rough.find_map(|steps| Some((steps, proof_of(steps)?)));
    let (low, proof) = found.ok_or(none)?;
    let mut fine = (low + 1..low + stride).rev().filter(|&above| above <= steps).take(FINE_PERIODS);
    let above = fine.find_map(|steps| Some((steps, proof_of(steps)?)));
    let (steps, proof) = above.unwrap_or((low, proof));
    let of = |steps: u64| reservation_of(share, step * steps);
    let below = of(steps + 1).and_then(|above| Some((above, prove(tasks, above).err()?)));
    let reservation = of(steps).expect("a proof needs a reservation");
    Ok(Fit { reservation, proof, below, tried: None })
}

/// Intervals in which the demand of the tasks exceeded the supply of a reservation. Other
/// reservations with the same share often fail in the same interval.
struct KnownShortfalls<'a> {
    tasks: &'a TaskSet,
    known: Vec<DemandShortfall>,
}

impl KnownShortfalls<'_> {
    /// Returns the proof that a reservation suffices. `None` if it has no proof.
    fn prove(&mut self, reservation: Reservation) -> Option<Proof> {
        let supply = PeriodicSupply::of(reservation);
        if self.known.iter().any(|short| short.demand > supply.least_in(short.within)) {
            return None;
        }
        match check(self.tasks, reservation) {
            Ok(proof) => return Some(proof),
            Err(Refutation::Shortfall(short)) if self.known.len() < MOST_SHORTFALLS => {
                self.known.push(short);
            }
            Err(_) => {}
        }
        None
    }
}

/// Returns the longest period that is possible with a share. After the longest time without CPU
/// time, each task must still have time for its work.
fn longest_period(tasks: &TaskSet, share: CpuShare) -> Span {
    period_for_delay(share, tasks.longest_delay()).unwrap_or_else(|| tasks.longest_period())
}

/// Returns the reservation of a share in a given period. The slice is rounded down. `None` if the
/// slice would be shorter than a nanosecond.
#[must_use]
pub fn reservation_of(share: CpuShare, period: Span) -> Option<Reservation> {
    let ns = u128::from(period.ns()) * u128::from(share.ppm()) / 1_000_000;
    let slice = Span::from_ns(u64::try_from(ns).ok()?);
    Reservation::new(slice.min(period), period).ok()
}

/// Returns the longest period with which a VM with this share is never without CPU time for longer
/// than `delay`. This is `delay / (2 × (1 - share))`, rounded down. `None` if the share is a whole
/// CPU, since the VM then never waits.
#[must_use]
pub fn period_for_delay(share: CpuShare, delay: Span) -> Option<Span> {
    let rest = u128::from(CpuShare::ONE.less(share).ppm());
    if rest == 0 {
        return None;
    }
    let ns = u128::from(delay.ns()) * 1_000_000 / (2 * rest);
    Some(Span::from_ns(u64::try_from(ns).unwrap_or(u64::MAX)))
}

/// Returns the reservation with this share and the longest period with which a VM is never without
/// CPU time for longer than `delay`. The period is a whole number of microseconds, and the slice is
/// rounded up. `None` if the share is a whole CPU, or the period would be below a microsecond.
#[must_use]
pub fn for_delay(share: CpuShare, delay: Span) -> Option<Reservation> {
    let period = period_for_delay(share, delay)?;
    let period = Span::from_us(period / Span::from_us(1));
    let ns = (u128::from(period.ns()) * u128::from(share.ppm())).div_ceil(1_000_000);
    let slice = Span::from_ns(u64::try_from(ns).ok()?);
    Reservation::new(slice, period).ok()
}

/// Returns the smallest share of a CPU with which a task set meets its deadlines, if the
/// reservation has a period of 100 us. `None` if a whole CPU does not suffice.
#[must_use]
pub fn least_share(tasks: &TaskSet) -> Option<CpuShare> {
    let fit = smallest_slice(tasks, SHORT_PERIOD, Span::from_ns(100)).ok()?;
    Some(fit.reservation.share())
}

/// Returns the reservation of [`for_delay`], with which a VM is never without CPU time for longer
/// than `delay`. Also returns a task set that proves this. The only task has a job of one
/// nanosecond, which is due when the delay ends. The reservation one step below has a longer
/// period. `None` if [`for_delay`] returns `None`, or if the delay is longer than
/// [`LONGEST_DELAY`].
#[must_use]
pub fn fit_delay(share: CpuShare, delay: Span) -> Option<(TaskSet, Fit)> {
    if delay > LONGEST_DELAY {
        return None;
    }
    let reservation = for_delay(share, delay)?;
    let tick = Span::from_ns(1);
    let period = (delay * 100).min(LONGEST);
    let probe = PeriodicTask::new(tick, period, delay + tick).ok()?;
    let tasks = TaskSet::new(vec![probe], TaskScheduler::Edf).ok()?;
    let proof = prove(&tasks, reservation).ok()?;
    let longer = for_delay(share, delay + delay / 100u64 + Span::from_us(2))?;
    let below = prove(&tasks, longer).err().map(|refutation| (longer, refutation));
    Some((tasks, Fit { reservation, proof, below, tried: None }))
}

/// Returns the number of equal VMs with this reservation that fit on one CPU. The part `reserve` of
/// that CPU is never reserved.
#[must_use]
pub fn vms_per_cpu(reservation: Reservation, reserve: CpuShare) -> u64 {
    let capacity = u128::from(CpuShare::ONE.less(reserve).ppm());
    let period = u128::from(reservation.period().ns()) * capacity;
    let vms = period / (u128::from(reservation.slice().ns()) * 1_000_000);
    u64::try_from(vms).expect("a slice has at least a nanosecond")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(scheduler: TaskScheduler, tasks: &[(u64, u64, u64)]) -> TaskSet {
        let us = Span::from_us;
        let task = |&(work, period, deadline): &(u64, u64, u64)| {
            PeriodicTask::new(us(work), us(period), us(deadline)).unwrap()
        };
        TaskSet::new(tasks.iter().map(task).collect(), scheduler).unwrap()
    }

    /// In the worst phase, one slice ends at 10 ms − S and the next slice begins at 10 ms. So one
    /// slice must do all the work, although half a slice would cover the utilisation.
    #[test]
    fn smallest_slice_equals_job_if_only_one_slice_precedes_deadline() {
        let (us, step) = (Span::from_us, Span::from_us(1));
        for scheduler in [TaskScheduler::Edf, TaskScheduler::Fixed] {
            let tasks = set(scheduler, &[(1000, 10_000, 10_000)]);
            let fit = smallest_slice(&tasks, us(5000), step).unwrap();
            assert_eq!(fit.reservation.slice(), us(1000), "{scheduler:?}");
            assert!(fit.proof.is_valid(&tasks, fit.reservation));
            let (below, refutation) = fit.below.unwrap();
            assert_eq!(below.slice(), us(999));
            assert_eq!(refutation.misses_within(), Some(us(10_000)));
            assert!(!fit.proof.is_valid(&tasks, below));
        }
    }

    #[test]
    fn largest_period_for_share_is_limited_by_longest_supply_gap() {
        let tasks = set(TaskScheduler::Edf, &[(1000, 10_000, 10_000)]);
        let half = CpuShare::from_ppm(500_000);
        let us = Span::from_us(1);
        let fit = largest_period(&tasks, half, us).unwrap();
        // With half a CPU, the longest time without CPU time is one period. 1 ms of CPU time
        // follows at once.
        assert_eq!(fit.reservation.period(), Span::from_ms(9));
        assert!(fit.proof.is_valid(&tasks, fit.reservation));
        assert!(fit.below.unwrap().0.period() > Span::from_ms(9));
        let none = Err(NoFit::Share { shortest: us });
        assert_eq!(largest_period(&tasks, CpuShare::from_ppm(90_000), us), none);
        // The period of the reservation may be longer than the period of the task.
        let fit = largest_period(&tasks, CpuShare::from_ppm(600_000), us).unwrap();
        assert_eq!(fit.reservation.to_string(), "6.75ms/11.25ms");
        assert!(fit.below.unwrap().1.misses_within().is_some());
    }

    #[test]
    fn largest_period_for_share_is_exact_to_the_step() {
        let tasks = set(TaskScheduler::Edf, &[(650, 6_000, 6_000)]);
        let most = |step| largest_period(&tasks, CpuShare::from_ppm(800_000), step).unwrap();
        assert_eq!(most(Span::from_us(1)).reservation.period(), Span::from_us(13_375));
        assert_eq!(most(Span::from_ms(1)).reservation.period(), Span::from_ms(13));
        let long = most(Span::from_ns(1)).reservation.period();
        assert!(long >= Span::from_us(13_375), "{long}");
    }

    #[test]
    fn longest_supply_gap_of_reservation_equals_the_requested_delay() {
        let share = CpuShare::from_ppm(200_000);
        let reservation = for_delay(share, Span::from_ms(15)).unwrap();
        assert_eq!(reservation.to_string(), "1.875ms/9.375ms");
        assert_eq!(crate::PeriodicSupply::of(reservation).blackout(), Span::from_ms(15));
        assert_eq!(for_delay(CpuShare::ONE, Span::from_ms(15)), None);
        assert!(fit_delay(share, LONGEST_DELAY).is_some());
        assert_eq!(fit_delay(share, LONGEST_DELAY + Span::from_ns(1)), None);
        assert_eq!(fit_delay(share, Span::from_ns(u64::MAX)), None);
        let (tasks, fit) = fit_delay(share, Span::from_ms(15)).unwrap();
        assert_eq!(fit.reservation, reservation);
        assert!(fit.proof.is_valid(&tasks, reservation));
        assert!(fit.below.unwrap().0.period() > reservation.period());
    }

    #[test]
    fn task_set_needing_over_one_cpu_fits_in_no_reservation() {
        let tasks = set(TaskScheduler::Edf, &[(6000, 10_000, 10_000), (5000, 10_000, 10_000)]);
        let error = smallest_slice(&tasks, Span::from_ms(5), Span::from_us(1)).unwrap_err();
        let NoFit::WholeCpu(refutation) = error else { panic!("{error}") };
        assert_eq!(refutation.misses_within(), Some(Span::from_ms(10)));
        assert_eq!(tasks.utilisation_ppm(), 1_100_000);
        assert_eq!(least_share(&tasks), None);
    }

    #[test]
    fn reservation_small_enough_for_one_more_vm_misses_a_deadline() {
        let tasks = set(TaskScheduler::Edf, &[(1000, 10_000, 10_000)]);
        let reserve = CpuShare::from_ppm(50_000);
        let simulated = ReservationLimits::SIMULATED;
        let fit = most_vms(&tasks, reserve, Span::from_us(1), simulated).unwrap();
        let vms = vms_per_cpu(fit.reservation, reserve);
        assert_eq!((vms, fit.reservation.to_string()), (9, "50us/478us".into()));
        // Ten VMs with a utilisation of 10 % do not fit into 95 % of a CPU.
        assert!(fit.tried.unwrap().is_most);
        let (below, refutation) = fit.below.unwrap();
        assert_eq!(below.period(), fit.reservation.period());
        assert!(refutation.misses_within().is_some());
    }

    #[test]
    fn search_over_all_periods_fits_more_vms_than_usual_periods() {
        let tasks = set(TaskScheduler::Edf, &[(650, 6_000, 6_000)]);
        let (reserve, us) = (CpuShare::from_ppm(50_000), Span::from_us(1));
        let simulated = ReservationLimits::SIMULATED;
        let most = most_vms(&tasks, reserve, us, simulated).unwrap();
        let usual = usual_periods(&tasks).into_iter().map(|period| {
            vms_per_cpu(smallest_slice(&tasks, period, us).unwrap().reservation, reserve)
        });
        assert_eq!(usual.max(), Some(7));
        assert_eq!(vms_per_cpu(most.reservation, reserve), 8);
        assert!(most.proof.is_valid(&tasks, most.reservation));
        // The step limits the shortest period, so a long step leaves room for fewer VMs.
        let rough = most_vms(&tasks, reserve, Span::from_us(200), simulated).unwrap();
        let tried = rough.tried.unwrap();
        assert!(!tried.is_most && tried.count == 315, "{tried:?}");
        assert_eq!(tried.shortest, simulated.period);
        assert_eq!(tried.longest, Span::from_ms(12));
        assert!(vms_per_cpu(rough.reservation, reserve) < 8, "{}", rough.reservation);
        let tasks = set(TaskScheduler::Edf, &[(1, 4, 4)]);
        let tried = most_vms(&tasks, reserve, us, simulated).unwrap().tried.unwrap();
        assert_eq!((tried.count, tried.shortest), (1, simulated.period));
    }

    #[test]
    fn most_vms_have_a_reservation_within_limits_if_one_suffices() {
        let (reserve, us) = (CpuShare::from_ppm(50_000), Span::from_us(1));
        let limits = ReservationLimits { period: Span::from_ms(1), slice: Span::from_us(50) };
        let most = |work, period, limits| {
            let tasks = set(TaskScheduler::Edf, &[(work, period, period)]);
            most_vms(&tasks, reserve, us, limits).unwrap()
        };
        let reservation = most(1000, 10_000, limits).reservation;
        assert!(reservation.period() >= limits.period && reservation.slice() >= limits.slice);
        assert_eq!(vms_per_cpu(reservation, reserve), 8);
        let small = most(45, 6_000, limits);
        assert_eq!(small.reservation.slice(), limits.slice);
        // No period of at least 1 ms suffices.
        let short = most(150, 200, limits);
        assert_eq!(short.tried, most(150, 200, ReservationLimits::SIMULATED).tried);
        // A CPU that is reserved completely must leave the rest of the period.
        let tasks = set(TaskScheduler::Edf, &[(8_900, 10_000, 10_000)]);
        let whole = most_vms(&tasks, CpuShare::NONE, us, limits).unwrap().reservation;
        assert!(whole.period() - whole.slice() >= limits.slice, "{whole}");
    }

    #[test]
    fn share_equal_to_utilisation_is_refused_without_scanning_deadlines() {
        let us = Span::from_us;
        let tasks = [20_100, 30_300, 40_700, 50_900, 60_100, 70_100, 80_900, 90_700];
        let tasks = tasks.map(|period| (period * 75 / 1000, period, period));
        let tasks = set(TaskScheduler::Edf, &tasks);
        let none = Err(NoFit::Share { shortest: us(1) });
        let share = CpuShare::from_ppm(u32::try_from(tasks.utilisation_ppm()).unwrap());
        assert_eq!(largest_period(&tasks, share, us(1)), none);
        let overloaded = reservation_of(share, us(100)).unwrap();
        assert_eq!(check(&tasks, overloaded), Err(Refutation::Overload));
        assert!(prove(&tasks, overloaded).unwrap_err() != Refutation::Overload);
    }

    #[test]
    fn number_of_equal_vms_on_a_cpu_is_rounded_down() {
        let third = Reservation::new(Span::from_ms(3), Span::from_ms(10)).unwrap();
        assert_eq!(vms_per_cpu(third, CpuShare::from_ppm(0)), 3);
        assert_eq!(vms_per_cpu(third, CpuShare::from_ppm(100_000)), 3);
        assert_eq!(vms_per_cpu(third, CpuShare::from_ppm(100_001)), 2);
    }
}
