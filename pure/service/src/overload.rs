//! CPUs that cannot deliver what is reserved on them, because the dispatcher takes more CPU time
//! than admission assumed.
//!
//! Admission assumes a quantile of the overhead that was measured before the first reservation.
//! While reservations are in force, the overhead is measured again as a mean over
//! [`OVERHEAD_WINDOW`]. A CPU is overloaded if `reserved + overhead > limit`. The beginning and the
//! end of each overload are reported once. An overload ends in two cases:
//! - The sum of reservations and overhead has stayed within the limit for a whole window.
//! - Reservations were reduced, so that they fit within the limit even with the last excessive
//!   overhead.
//!
//! So an overhead that varies around the limit causes at most one event per window.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use slackline_units::{CpuId, CpuShare, Span, Time};

/// Length of the time window over which dispatch overhead is averaged.
pub const OVERHEAD_WINDOW: Span = Span::from_secs(10);

/// Dispatch overhead of one CPU over the last [`OVERHEAD_WINDOW`].
#[derive(Clone, Debug, Default)]
pub struct OverheadWindow {
    /// Samples of the overhead, oldest first: start, end, and CPU time that the dispatcher took.
    samples: VecDeque<(Time, Time, Span)>,
}

impl OverheadWindow {
    /// Adds a sample: the CPU time that the dispatcher took from `from` to `to`. There must be no
    /// gap between samples.
    pub fn add(&mut self, from: Time, to: Time, dispatching: Span) {
        if to <= from {
            return;
        }
        self.samples.push_back((from, to, dispatching));
        while self.samples.get(1).is_some_and(|&(from, ..)| to.since(from) >= OVERHEAD_WINDOW) {
            self.samples.pop_front();
        }
    }

    /// Returns the part of the CPU that the dispatcher took in the last window. `None` until the
    /// samples cover a whole window.
    #[must_use]
    pub fn overhead(&self) -> Option<CpuShare> {
        let (&(from, ..), &(_, to, _)) = (self.samples.front()?, self.samples.back()?);
        let passed = to.since(from);
        if passed < OVERHEAD_WINDOW {
            return None;
        }
        let took: u128 = self.samples.iter().map(|&(.., took)| u128::from(took.ns())).sum();
        let ppm = (took * 1_000_000).div_ceil(u128::from(passed.ns()));
        Some(CpuShare::from_ppm(u32::try_from(ppm).unwrap_or(u32::MAX)))
    }
}

/// Reserved share and measured overhead of a CPU, with the limit for their sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuLoad {
    /// Sum of all reservations on the CPU, without dispatch overhead.
    pub reserved: CpuShare,
    /// Dispatch overhead that was measured over the last [`OVERHEAD_WINDOW`].
    pub overhead: CpuShare,
    /// Largest part of the CPU time that the kernel gives to real-time threads.
    pub limit: CpuShare,
}

impl CpuLoad {
    /// Returns true if the CPU cannot deliver its reservations: reserved share and overhead exceed
    /// the limit.
    #[must_use]
    pub fn is_excessive(&self) -> bool {
        u64::from(self.reserved.ppm()) + u64::from(self.overhead.ppm())
            > u64::from(self.limit.ppm())
    }
}

impl fmt::Display for CpuLoad {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CpuLoad { reserved, overhead, limit } = self;
        let relation = if self.is_excessive() { "exceed" } else { "fit in" };
        write!(
            out,
            "{reserved} reserved and {overhead} of overhead in the last {OVERHEAD_WINDOW} \
             {relation} the {limit} that the kernel gives to real-time threads"
        )
    }
}

/// Beginning or end of an overload of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverloadChange {
    Began,
    Ended,
}

/// Record of the overloaded CPUs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overloads {
    /// For each overloaded CPU, the last load above the limit, with the time at which it was
    /// measured.
    excess: BTreeMap<CpuId, (CpuLoad, Time)>,
}

impl Overloads {
    /// Adds a measurement of a CPU. If an overload of the CPU begins or ends with it, returns this
    /// change.
    pub(crate) fn measured(
        &mut self,
        now: Time,
        cpu: CpuId,
        load: CpuLoad,
    ) -> Option<OverloadChange> {
        if load.is_excessive() {
            let before = self.excess.insert(cpu, (load, now));
            return before.is_none().then_some(OverloadChange::Began);
        }
        let &(last, at) = self.excess.get(&cpu)?;
        let would_fit = !CpuLoad { overhead: last.overhead, ..load }.is_excessive();
        if !would_fit && now.since(at) < OVERHEAD_WINDOW {
            return None;
        }
        self.excess.remove(&cpu);
        Some(OverloadChange::Ended)
    }

    /// Returns each overloaded CPU with its last load above the limit.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (CpuId, CpuLoad)> {
        self.excess.iter().map(|(&cpu, &(load, _))| (cpu, load))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::START.after(Span::from_ms(ms))
    }

    fn share(ppm: u32) -> CpuShare {
        CpuShare::from_ppm(ppm)
    }

    fn load(reserved: u32, overhead: u32) -> CpuLoad {
        CpuLoad { reserved: share(reserved), overhead: share(overhead), limit: share(950_000) }
    }

    #[test]
    fn cpu_overhead_is_the_mean_over_the_last_complete_window() {
        let mut window = OverheadWindow::default();
        window.add(at(0), at(0), Span::from_ms(7));
        for second in 0..10 {
            assert_eq!(window.overhead(), None, "{second} s are less than a window");
            window.add(at(second * 1_000), at((second + 1) * 1_000), Span::from_ms(10));
        }
        assert_eq!(window.overhead(), Some(share(10_000)));
        // A second with 110 ms of overhead replaces a second with 10 ms.
        window.add(at(10_000), at(11_000), Span::from_ms(110));
        assert_eq!(window.overhead(), Some(share(20_000)));
        // After another window, the second with the high overhead no longer counts.
        for second in 11..21 {
            window.add(at(second * 1_000), at((second + 1) * 1_000), Span::from_us(1));
        }
        assert_eq!(window.overhead(), Some(share(1)));
    }

    #[test]
    fn overhead_sample_longer_than_window_is_averaged_over_its_length() {
        let mut window = OverheadWindow::default();
        window.add(at(0), at(3_000), Span::from_secs(3));
        window.add(at(3_000), at(23_000), Span::from_secs(1));
        assert_eq!(window.overhead(), Some(share(50_000)));
    }

    #[test]
    fn cpu_is_overloaded_only_if_its_load_exceeds_the_limit() {
        assert!(!load(900_000, 50_000).is_excessive());
        assert!(load(900_000, 50_001).is_excessive());
        assert!(load(u32::MAX, u32::MAX).is_excessive());
        let says = load(900_000, 54_000).to_string();
        assert!(
            says.starts_with("0.9cpu reserved and 0.054cpu of overhead in the last 10s exceed")
        );
    }

    #[test]
    fn cpu_overload_ends_after_a_window_with_load_below_limit() {
        let (mut overloads, cpu) = (Overloads::default(), CpuId::new(1));
        assert_eq!(overloads.measured(at(0), cpu, load(900_000, 50_000)), None);
        let began = overloads.measured(at(1_000), cpu, load(900_000, 54_000));
        assert_eq!(began, Some(OverloadChange::Began));
        // A mean that varies around the limit causes no further event.
        for second in 2..100 {
            let overhead = if second % 9 == 0 { 54_000 } else { 49_000 };
            let change = overloads.measured(at(second * 1_000), cpu, load(900_000, overhead));
            assert_eq!(change, None, "after {second} s");
        }
        assert_eq!(overloads.iter().collect::<Vec<_>>(), [(cpu, load(900_000, 54_000))]);
        assert_eq!(overloads.measured(at(108_999), cpu, load(900_000, 49_000)), None);
        let ended = overloads.measured(at(109_000), cpu, load(900_000, 49_000));
        assert_eq!(ended, Some(OverloadChange::Ended));
        assert_eq!(overloads.iter().count(), 0);
    }

    #[test]
    fn cpu_overload_ends_immediately_if_reduced_reservations_fit_with_overhead() {
        let (mut overloads, cpu) = (Overloads::default(), CpuId::new(1));
        overloads.measured(at(0), cpu, load(900_000, 54_000));
        assert_eq!(overloads.measured(at(1_000), cpu, load(896_001, 53_000)), None);
        let ended = overloads.measured(at(2_000), cpu, load(896_000, 53_000));
        assert_eq!(ended, Some(OverloadChange::Ended));
    }
}
