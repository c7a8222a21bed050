//! Part of admission: a check that the dispatchers' reservations get their CPU time although
//! deadline threads interfere with them.
//!
//! Deadline threads are threads of the class `SCHED_DEADLINE`: those of the daemon's own
//! reservations, and those of other programs. All of them run before every vCPU of a dispatcher.

use std::collections::{BTreeMap, BTreeSet};

use slackline_linux::sys::Tid;
use slackline_live::mechanism::{DeadlineThread, Interference, InterferenceCurve};
use slackline_service::{Identity, Terms, WorldError};
use slackline_units::{CpuId, CpuShare, DomId, Reservation, Span};

use super::kernel_seats::in_each_second;
use super::scheduler::Scheduler;
use super::shares::FRONT_PERIOD;

/// State for the check of interference: the deadline threads of all programs, and the dispatchers'
/// reservations that these threads can delay.
struct DeadlineState {
    /// Interference curve of the daemon's own deadline threads: the longest time that they can take
    /// from a CPU, for each length of a window.
    own: InterferenceCurve,
    /// For each set of deadline threads that may run on a CPU: the parameters of the threads, and
    /// the interference curve of the set (see `own`). CPUs with the same threads share one entry.
    /// Empty if other programs have no deadline threads.
    all: Vec<(Vec<Reservation>, InterferenceCurve)>,
    /// For each CPU of the session, the index of its entry in `all`. Empty if `all` is empty.
    of_cpu: Vec<usize>,
    /// Share that the dispatchers have reserved on each CPU of the session. Empty if there are no
    /// deadline threads.
    reserved: Vec<CpuShare>,
    /// Shortest period of the dispatchers' reservations. `None` if they have no reservations.
    shortest: Option<Span>,
    /// Period of the front process's reservation. `None` if the front process has no reservation.
    front: Option<Span>,
}

impl DeadlineState {
    /// Builds the interference curve of the daemon's own deadline threads. If other programs have
    /// deadline threads, also builds the curve of all deadline threads of each CPU.
    fn new(
        own: &[Reservation],
        (others, cpus): (&[DeadlineThread], &[CpuId]),
        reserved: Vec<CpuShare>,
        (shortest, front): (Option<Span>, Option<Span>),
    ) -> DeadlineState {
        let mut all: Vec<(Vec<Reservation>, InterferenceCurve)> = Vec::new();
        let mut of_cpu = Vec::new();
        for &cpu in cpus.iter().filter(|_| !others.is_empty()) {
            let others = DeadlineThread::on(others, cpu);
            let threads: Vec<Reservation> = own.iter().copied().chain(others).collect();
            let known = all.iter().position(|(known, _)| *known == threads);
            of_cpu.push(known.unwrap_or(all.len()));
            if known.is_none() {
                let curve = InterferenceCurve::new(&threads);
                all.push((threads, curve));
            }
        }
        let own = InterferenceCurve::new(own);
        DeadlineState { own, all, of_cpu, reserved, shortest, front }
    }

    /// Checks that the CPU with the number `cpu` in the session has time for the reservations of
    /// its dispatcher beside the deadline threads. `reserved` is the total share of these
    /// reservations. `shortest` is the shortest period of the reservations of all dispatchers.
    fn check(
        &self,
        cpu: usize,
        reserved: CpuShare,
        shortest: Option<Span>,
    ) -> Result<(), Interference> {
        if let Some(shortest) = shortest.into_iter().chain(self.front).min() {
            self.own.check(reserved, shortest)?;
        }
        // Another program can delay the front process, but no reservation is refused for that.
        let all = self.of_cpu.get(cpu).and_then(|&index| self.all.get(index));
        match shortest.zip(all) {
            Some((shortest, (_, all))) => all.check(reserved, shortest),
            None => Ok(()),
        }
    }

    /// Checks each CPU of the session. `share` maps the share that is reserved on a CPU now to the
    /// share that is checked. The error contains the first CPU with too little time, by its number
    /// in the session.
    fn check_all(
        &self,
        shortest: Option<Span>,
        share: impl Fn(CpuShare) -> CpuShare,
    ) -> Result<(), (usize, Interference)> {
        for (cpu, &reserved) in self.reserved.iter().enumerate() {
            let checked = self.check(cpu, share(reserved), shortest);
            checked.map_err(|found| (cpu, found))?;
        }
        Ok(())
    }

    /// Returns, for each CPU, the longest slice that a new reservation of its dispatcher can have
    /// beside the deadline threads. `rooms` contains the longest slice of each CPU as if there were
    /// no deadline threads. If deadline threads make a slice shorter, the slice is rounded down to
    /// whole microseconds.
    fn rooms(&self, period: Span, rooms: Vec<Span>) -> Vec<Span> {
        // A new reservation adds to the share of its own CPU only. But if it has the shortest
        // period, that period counts on each CPU. The check of the other CPUs depends only on the
        // shortest period, so its result is stored for each period.
        let mut is_long_enough = BTreeMap::new();
        let mut fits = |cpu: usize, slice: Span| {
            let Ok(each) = Reservation::new(slice, period) else { return false };
            let terms = Terms::new(each, true, 1);
            let part = terms.map_or(each, |terms| terms.in_each_second().each()).period();
            let shortest = Some(self.shortest.map_or(part, |one| one.min(part)));
            let present = self.reserved[cpu].ppm();
            let reserved = CpuShare::from_ppm(present + rounded_up_ppm(each));
            let check_others = || self.check_all(shortest, |reserved| reserved).is_ok();
            self.check(cpu, reserved, shortest).is_ok()
                && *is_long_enough.entry(shortest).or_insert_with(check_others)
        };
        let rooms = rooms.into_iter().enumerate();
        let rooms = rooms.map(|(cpu, room)| {
            if self.reserved.is_empty() || room.is_zero() || fits(cpu, room) {
                return room;
            }
            longest_slice(room, |slice| fits(cpu, slice))
        });
        rooms.collect()
    }
}

impl Scheduler {
    /// Checks that the dispatchers' reservations on each CPU meet their deadlines beside all
    /// deadline threads. `newcomer` is a domain with new parameters, and `machine` is the VM of
    /// this domain.
    pub(super) fn check_interference(
        &self,
        newcomer: DomId,
        machine: Option<Identity>,
    ) -> Result<(), WorldError> {
        let Some(terms) = self.domains.get(&newcomer).map(|known| known.terms) else {
            return Err(WorldError::Gone);
        };
        let others = self.deadline_threads_of_others(machine);
        let state = self.deadline_state(&others, None);
        let checked = self.interference((&state, &others), (newcomer, terms.each()));
        let Err((cpu, found)) = checked else { return Ok(()) };
        let period = terms.each().period();
        let fits = |slice| {
            let each = Reservation::new(slice, period);
            each.is_ok_and(|each| self.interference((&state, &others), (newcomer, each)).is_ok())
        };
        Err(WorldError::Interference {
            promised: self.reserved().get(cpu).copied().unwrap_or_default(),
            capacity: self.capacity(),
            largest: longest_slice(terms.each().slice(), fits),
            says: format!("not enough capacity on CPU {}: {found}", self.cpus()[cpu].index()),
        })
    }

    /// Returns the deadline threads of other programs. The threads of `machine`, a VM that has or
    /// gets a reservation, are not among them.
    fn deadline_threads_of_others(&self, machine: Option<Identity>) -> Vec<DeadlineThread> {
        let kernels = self.domains.values().filter_map(|known| known.kernel.as_ref());
        let seated = kernels.flat_map(|kernel| kernel.seated.iter().flatten());
        let own: BTreeSet<Tid> = seated.map(|seated| seated.thread.tid()).collect();
        let found = machine.and_then(|identity| self.found.get(&identity));
        let pid = found.and_then(|found| found.machine.pid());
        let others = self.deadline_threads.iter().filter(|one| !own.contains(&one.tid));
        // A thread can have left the class since the last reading.
        others.filter(|one| Some(one.pid) != pid && one.is_there()).copied().collect()
    }

    /// Checks the interference as if each vCPU of `domain` had the reservation `each`. `state` is
    /// the present state. The error contains the first CPU with too little time, by its number in
    /// the session.
    fn interference(
        &self,
        (state, others): (&DeadlineState, &[DeadlineThread]),
        (domain, each): (DomId, Reservation),
    ) -> Result<(), (usize, Interference)> {
        match self.domains.get(&domain).filter(|known| known.kernel.is_none()) {
            Some(known) => {
                let present = known.terms.each().share();
                state.check_all(state.shortest, |reserved| {
                    CpuShare::from_ppm(reserved.less(present).ppm() + each.share().ppm())
                })
            }
            None => {
                let state = self.deadline_state(others, Some((domain, each)));
                state.check_all(state.shortest, |reserved| reserved)
            }
        }
    }

    /// Returns the deadline threads and the dispatchers' reservations. If `changed` contains a
    /// domain and a reservation, the result is as if each vCPU of the domain had that reservation.
    fn deadline_state(
        &self,
        others: &[DeadlineThread],
        changed: Option<(DomId, Reservation)>,
    ) -> DeadlineState {
        // The share of the daemon's own deadline threads is reserved on each CPU.
        let (mut own, mut share) = (Vec::new(), 0);
        let mut shortest: Option<Span> = None;
        for (&id, known) in &self.domains {
            if known.kernel.is_none() {
                let period = known.terms.in_each_second().each().period();
                shortest = Some(shortest.map_or(period, |one| one.min(period)));
                continue;
            }
            let each = changed.filter(|(domain, _)| *domain == id).map(|(_, each)| each);
            let each = in_each_second(known.terms, each.unwrap_or(known.terms.each()));
            own.extend(known.places.iter().map(|_| each));
            share += known.terms.each().share().ppm() * u32::from(known.terms.vcpus());
        }
        let has_threads = !own.is_empty() || !others.is_empty();
        let reserved = if has_threads { self.reserved() } else { Vec::new() };
        let reserved = reserved.into_iter().map(|all| all.less(CpuShare::from_ppm(share)));
        let front = self.front.map(|_| FRONT_PERIOD);
        DeadlineState::new(&own, (others, &self.cpus), reserved.collect(), (shortest, front))
    }

    /// Returns, for each CPU of the session, the longest slice that a new reservation of its
    /// dispatcher can have beside the deadline threads. `rooms` contains the longest slice of each
    /// CPU as if there were no deadline threads.
    pub(super) fn rooms_beside_deadline_threads(
        &self,
        period: Span,
        rooms: Vec<Span>,
    ) -> Vec<Span> {
        let others = self.deadline_threads_of_others(None);
        self.deadline_state(&others, None).rooms(period, rooms)
    }
}

/// Returns the longest slice below `refused` for which `fits` returns true, in whole microseconds.
/// Zero if no slice fits.
fn longest_slice(refused: Span, mut fits: impl FnMut(Span) -> bool) -> Span {
    let (mut good, mut bad) = (0, refused.ns().div_ceil(1_000));
    while bad - good > 1 {
        let middle = good.midpoint(bad);
        if fits(Span::from_us(middle)) { good = middle } else { bad = middle }
    }
    Span::from_us(good)
}

/// Returns slice/period in millionths. The value is rounded up, so that admission counts at least
/// the whole share.
fn rounded_up_ppm(each: Reservation) -> u32 {
    let (slice, period) = (u128::from(each.slice().ns()), u128::from(each.period().ns()));
    u32::try_from((slice * 1_000_000).div_ceil(period)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use slackline_linux::sys::own_tid;
    use slackline_units::CpuSet;

    use super::*;

    fn each(slice_us: u64, period_us: u64) -> Reservation {
        let each = Reservation::new(Span::from_us(slice_us), Span::from_us(period_us));
        each.expect("a slice is at most its period")
    }

    /// On each of 64 CPUs, 10 % are reserved by the dispatcher. The daemon has 512 deadline
    /// threads. Another program has eight deadline threads on the even CPUs and eight on the odd
    /// CPUs. All these threads have different parameters. A check of each pair of threads in each
    /// window would take hours.
    #[test]
    fn capacity_of_64_cpus_beside_512_deadline_threads_is_exact() {
        let began = Instant::now();
        let own: Vec<Reservation> = (0..512).map(|it| each(50 + it % 8, 100_000 + it)).collect();
        let cpus: Vec<CpuId> = (0..64).map(CpuId::new).collect();
        let half = |odd: usize| (0..32).map(move |cpu| CpuId::new(2 * cpu + odd));
        let others = (0..16).map(|it| {
            let (pid, each) = (own_tid(), each(100 + it, 90_000));
            let cpus: CpuSet = if it < 8 { half(0).collect() } else { half(1).collect() };
            DeadlineThread { pid, tid: pid, each, cpus }
        });
        let others: Vec<DeadlineThread> = others.collect();
        let reserved = vec![CpuShare::from_ppm(100_000); cpus.len()];
        let state = DeadlineState::new(&own, (&others, &cpus), reserved, (None, None));
        let rooms = |rooms: Vec<Span>| state.rooms(Span::from_secs(1), rooms);
        let found = rooms(vec![Span::from_ms(600); cpus.len()]);
        let range = Span::from_ms(40)..Span::from_ms(70);
        assert!(found.iter().all(|room| range.contains(room)), "{found:?}");
        assert!(found[0] > found[1], "other programs have larger slices on odd CPUs");
        assert_eq!(rooms(found.clone()), found);
        let longer = found.iter().map(|&room| room + Span::from_us(1)).collect();
        assert_eq!(rooms(longer), found);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(20), "{took:?}");
        println!("three times the rooms of 64 CPUs in {took:?}");
    }

    /// In any window of 1 ms, a deadline thread can take 0.6 ms.
    #[test]
    fn overload_of_one_cpu_leaves_no_capacity_for_short_periods() {
        let cpus = [CpuId::new(0), CpuId::new(1)];
        let (ms, us) = (Span::from_ms, Span::from_us);
        let rooms = |second_ppm, period| {
            let reserved = vec![CpuShare::NONE, CpuShare::from_ppm(second_ppm)];
            let own = [each(300, 100_000)];
            let periods = (Some(ms(100)), None);
            DeadlineState::new(&own, (&[], &cpus), reserved, periods)
                .rooms(period, vec![us(900); 2])
        };
        assert_eq!(rooms(100_000, ms(1)), [us(400), us(300)]);
        // The reservations of CPU 1 leave 0.2 ms of each millisecond.
        assert_eq!(rooms(800_000, ms(1)), [Span::ZERO; 2]);
        assert_eq!(rooms(800_000, ms(100)), [us(900); 2]);
    }

    #[test]
    fn search_finds_longest_slice_that_fits_in_whole_microseconds() {
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
