//! Context switches and wake-ups of all threads of a host, for a recorder. The events need two
//! descriptors per CPU, none per thread, and no filter.
//!
//! Switches come from side-band records of perf events and not from a tracepoint. The reason is
//! that on some virtual hosts tracepoints do not fire when a CPU leaves idle. Wake-ups come from
//! the tracepoint `sched_waking`, which fires on the CPU of the waker. So a wake-up is recorded
//! even if the CPU of the woken thread is idle. The kernel does not notify the recorder of events,
//! so the recorder reads the rings at intervals.

use std::os::fd::{AsFd, OwnedFd};

use slackline_linux::sys::{
    Ring, Tell, online_cpus, open_all_hits, open_switches, share_ring, switch_on,
};
use slackline_linux::version::KernelVersion;
use slackline_trace::WakeMark;
use slackline_units::{CpuId, Time};

use super::perf::{PerfRing, WatchError, check_namespace, refused, wakes_of};
use super::{Event, EventSource};

/// Size of the ring for the records of one CPU, in bytes. A switch has two records of 32 bytes, and
/// a wake-up has one record of at most 64 bytes. So the ring has space for about 80 ms of a CPU
/// that makes 400,000 switches a second and as many wake-ups.
pub const RING_BYTES: usize = 4 << 20;

/// Source of context switches and wake-ups of all threads of a host.
#[derive(Debug)]
pub struct HostWatch {
    rings: Vec<PerfRing>,
    _events: Vec<OwnedFd>,
    mark: WakeMark,
}

/// Report that events of a CPU were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// CPU whose events were lost.
    pub cpu: CpuId,
    /// Minimum number of lost events.
    pub events: u64,
}

impl HostWatch {
    /// Opens the events of all online CPUs, with a ring of `bytes` bytes for each.
    ///
    /// # Errors
    /// If the kernel does not allow events of whole CPUs, this process lacks a privilege, tracefs
    /// is not available, or there is not enough memory.
    pub fn open(bytes: usize) -> Result<HostWatch, WatchError> {
        if KernelVersion::of_host().is_ok_and(|version| version < KernelVersion::TELLS_READINESS) {
            return Err(WatchError::TooOld);
        }
        let online = online_cpus().map_err(|source| WatchError::NoCpus { source })?;
        check_namespace()?;
        let waking = wakes_of("sched/sched_waking", "sched_waking");
        let (wakes, mark) = match waking {
            Ok(wakes) => (wakes, WakeMark::Waking),
            Err(_) => (wakes_of("sched/sched_wakeup", "sched_wakeup")?, WakeMark::Wakeup),
        };
        let (mut rings, mut events) = (Vec::new(), Vec::new());
        for cpu in online.iter() {
            let refused = |source| refused(cpu, source);
            let switches = open_switches(cpu).map_err(refused)?;
            let ring = Ring::map(switches.as_fd(), bytes);
            let ring = ring.map_err(|source| WatchError::NoRing { cpu, bytes, source })?;
            let woken = open_all_hits(wakes.id, cpu, Tell::Nobody).map_err(refused)?;
            share_ring(woken.as_fd(), switches.as_fd()).map_err(refused)?;
            switch_on(woken.as_fd()).map_err(refused)?;
            rings.push(PerfRing { cpu, ring, wakes });
            events.extend([switches, woken]);
        }
        Ok(HostWatch { rings, _events: events, mark })
    }

    /// Returns the CPUs whose events are read.
    pub fn cpus(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.rings.iter().map(PerfRing::cpu)
    }

    /// Returns the tracepoint by which wake-ups are recorded on this kernel.
    #[must_use]
    pub const fn mark(&self) -> WakeMark {
        self.mark
    }

    /// Appends the events since the last call, in order of time for each CPU, and returns the
    /// losses.
    ///
    /// # Errors
    /// If the kernel's records cannot be parsed.
    pub fn drain(&mut self, into: &mut Vec<Event>) -> Result<Vec<Loss>, WatchError> {
        let mut losses = Vec::new();
        for ring in &mut self.rings {
            let cpu = ring.cpu();
            let drained = ring.drain(&mut |event| into.push(event))?;
            if drained.lost > 0 {
                losses.push(Loss { cpu, events: drained.lost });
            }
        }
        Ok(losses)
    }
}

/// Removes the events up to `until` and returns them in order of time. Later events stay in
/// `events`, because another CPU may still report events before them.
pub fn take_until(events: &mut Vec<Event>, until: Time) -> Vec<Event> {
    events.sort_by_key(|event| event.at);
    let end = events.partition_point(|event| event.at <= until);
    let rest = events.split_off(end);
    std::mem::replace(events, rest)
}
