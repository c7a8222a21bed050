//! Interference of deadline threads with the dispatchers' reservations, as part of admission.
//!
//! Deadline threads are those of the daemon's own reservations, and those of other programs. All of
//! them run before every vCPU of a dispatcher.

use std::collections::BTreeSet;

use slackline_linux::sys::Tid;
use slackline_live::mechanism::{DeadlineThread, Interference, check_interference};
use slackline_service::{Identity, Terms, WorldError};
use slackline_units::{CpuShare, DomId, Reservation, Span};

use super::kernel_seats::in_each_second;
use super::scheduler::Scheduler;
use super::shares::FRONT_PERIOD;

/// Deadline threads of the daemon's reservations, and the shortest period of the dispatchers'
/// reservations.
#[derive(Default)]
struct DeadlineState {
    threads: Vec<Reservation>,
    /// Total share of `threads`, in millionths of a CPU. It is reserved on each CPU.
    share: u32,
    /// Shortest period of the dispatchers' reservations. `None` if there are none.
    shortest: Option<Span>,
}

impl DeadlineState {
    fn shorten(&mut self, period: Span) {
        self.shortest = Some(self.shortest.map_or(period, |one| one.min(period)));
    }
}

impl Scheduler {
    /// Checks that the dispatchers' reservations on each CPU meet their deadlines beside all
    /// deadline threads. `newcomer` is the domain with new parameters, and `machine` is its VM.
    pub(super) fn check_interference(
        &self,
        newcomer: DomId,
        machine: Option<Identity>,
    ) -> Result<(), WorldError> {
        let Some(terms) = self.domains.get(&newcomer).map(|known| known.terms) else {
            return Err(WorldError::Gone);
        };
        let others = self.deadline_threads_of_others(machine);
        let checked = self.interference(&others, (newcomer, terms.each()));
        let Err((cpu, found)) = checked else { return Ok(()) };
        let period = terms.each().period();
        let fits = |slice| {
            let each = Reservation::new(slice, period);
            each.is_ok_and(|each| self.interference(&others, (newcomer, each)).is_ok())
        };
        Err(WorldError::Interference {
            promised: self.reserved().get(cpu).copied().unwrap_or_default(),
            capacity: self.capacity(),
            largest: longest_slice(terms.each().slice(), fits),
            says: format!("not enough capacity on CPU {}: {found}", self.cpus()[cpu].index()),
        })
    }

    /// Returns the deadline threads that have no reservation of this daemon. The threads of
    /// `machine`, which has or gets a reservation, are left out.
    pub(super) fn deadline_threads_of_others(
        &self,
        machine: Option<Identity>,
    ) -> Vec<DeadlineThread> {
        let kernels = self.domains.values().filter_map(|known| known.kernel.as_ref());
        let seated = kernels.flat_map(|kernel| kernel.seated.iter().flatten());
        let own: BTreeSet<Tid> = seated.map(|seated| seated.thread.tid()).collect();
        let found = machine.and_then(|identity| self.found.get(&identity));
        let pid = found.and_then(|found| found.machine.pid());
        let others = self.deadline_threads.iter().filter(|one| !own.contains(&one.tid));
        // A thread can have left the class since the last reading.
        others.filter(|one| Some(one.pid) != pid && one.is_there()).copied().collect()
    }

    /// Checks the interference as it would be if `domain` had the reservation `each` for each vCPU.
    /// The error has the first CPU with too little time, by its number in the session.
    fn interference(
        &self,
        others: &[DeadlineThread],
        (domain, each): (DomId, Reservation),
    ) -> Result<(), (usize, Interference)> {
        let state = self.deadline_state(Some((domain, each)));
        let dispatched = self.domains.get(&domain).filter(|known| known.kernel.is_none());
        self.first_interference((&state, others), |_, reserved| match dispatched {
            Some(known) => {
                let present = known.terms.each().share();
                CpuShare::from_ppm(reserved.less(present).ppm() + each.share().ppm())
            }
            None => reserved,
        })
    }

    /// Returns the deadline threads of the daemon's reservations, as they would be if a domain had
    /// other parameters for each vCPU.
    fn deadline_state(&self, changed: Option<(DomId, Reservation)>) -> DeadlineState {
        let mut state = DeadlineState::default();
        for (&id, known) in &self.domains {
            if known.kernel.is_none() {
                state.shorten(known.terms.in_each_second().each().period());
                continue;
            }
            let each = changed.filter(|(domain, _)| *domain == id).map(|(_, each)| each);
            let each = in_each_second(known.terms, each.unwrap_or(known.terms.each()));
            state.threads.extend(known.places.iter().map(|_| each));
            state.share += known.terms.each().share().ppm() * u32::from(known.terms.vcpus());
        }
        state
    }

    /// Checks each CPU of the session. `share` is called with the number of the CPU and with the
    /// share that the dispatchers have reserved on it. It returns the share to be checked.
    fn first_interference(
        &self,
        (state, others): (&DeadlineState, &[DeadlineThread]),
        share: impl Fn(usize, CpuShare) -> CpuShare,
    ) -> Result<(), (usize, Interference)> {
        if state.threads.is_empty() && others.is_empty() {
            return Ok(());
        }
        let front = self.front.map(|_| FRONT_PERIOD);
        let with_front = state.shortest.into_iter().chain(front).min();
        for (cpu, reserved) in self.reserved().into_iter().enumerate() {
            let reserved = share(cpu, reserved.less(CpuShare::from_ppm(state.share)));
            let found = |found| (cpu, found);
            if let Some(shortest) = with_front {
                check_interference(&state.threads, reserved, shortest).map_err(found)?;
            }
            // Another program can delay the front process, but no reservation is refused for that.
            if let Some(shortest) = state.shortest.filter(|_| !others.is_empty()) {
                let others = DeadlineThread::on(others, self.cpus[cpu]);
                let all: Vec<Reservation> = state.threads.iter().copied().chain(others).collect();
                check_interference(&all, reserved, shortest).map_err(found)?;
            }
        }
        Ok(())
    }

    /// Returns the longest slice, at most `room`, that a new reservation of a dispatcher can have
    /// beside all deadline threads. `cpu` is the number of the dispatcher's CPU in the session. A
    /// slice that is shorter than `room` is in whole microseconds.
    pub(super) fn room_beside(
        &self,
        others: &[DeadlineThread],
        (cpu, period): (usize, Span),
        room: Span,
    ) -> Span {
        let fits = |slice| {
            let each = Reservation::new(slice, period).ok()?;
            let terms = Terms::new(each, true, 1);
            let part = terms.map_or(each, |terms| terms.in_each_second().each());
            let mut state = self.deadline_state(None);
            state.shorten(part.period());
            let with_newcomer = |on: usize, reserved: CpuShare| {
                let newcomer = if on == cpu { rounded_up_ppm(each) } else { 0 };
                CpuShare::from_ppm(reserved.ppm() + newcomer)
            };
            self.first_interference((&state, others), with_newcomer).ok()
        };
        if room.is_zero() || fits(room).is_some() {
            return room;
        }
        longest_slice(room, |slice| fits(slice).is_some())
    }
}

/// Returns the longest slice below `refused` that fits, in whole microseconds. Zero if none fits.
fn longest_slice(refused: Span, fits: impl Fn(Span) -> bool) -> Span {
    let (mut good, mut bad) = (0, refused.ns().div_ceil(1_000));
    while bad - good > 1 {
        let middle = good.midpoint(bad);
        if fits(Span::from_us(middle)) { good = middle } else { bad = middle }
    }
    Span::from_us(good)
}

/// Returns slice/period in millionths, rounded up, so that admission never counts a larger share.
fn rounded_up_ppm(each: Reservation) -> u32 {
    let (slice, period) = (u128::from(each.slice().ns()), u128::from(each.period().ns()));
    u32::try_from((slice * 1_000_000).div_ceil(period)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_slice_is_the_last_whole_microsecond_that_fits() {
        let us = Span::from_us;
        for most in [0, 1, 2, 3_999, 5_871, 5_872] {
            let refused = Span::from_ns(5_872_972);
            assert_eq!(longest_slice(refused, |slice| slice <= us(most)), us(most));
        }
        assert_eq!(longest_slice(us(4_000), |_| true), us(3_999), "the refused slice is longer");
    }

    #[test]
    fn share_of_slice_is_rounded_up_to_the_next_millionth() {
        let ppm = |slice, period| {
            let each = Reservation::new(Span::from_ns(slice), Span::from_ns(period));
            rounded_up_ppm(each.expect("a slice is at most its period"))
        };
        assert_eq!((ppm(4, 10), ppm(1, 3), ppm(3, 3)), (400_000, 333_334, 1_000_000));
    }
}
