//! Notifications of CPU time that a vCPU receives while it counts as blocked.
//!
//! Notifications are needed because some kernels do not report every wake-up on an idle CPU.
//! Without notifications, a vCPU with a hard limit could then run past its slice until the next
//! dispatcher pass.
//!
//! A perf event counts the CPU time of the vCPU. Each time that the vCPU has received a fixed
//! fraction of its slice, the event wakes the dispatcher. While the vCPU is real-time, the event is
//! off, since the dispatcher's timer ends the slice. The event is on while the vCPU is ordinary,
//! and while a process tree is stopped.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use slackline_units::{CpuId, CpuSet, Span};

use super::perf::UseRings;
use slackline_linux::sys::{CountTarget, Tid, open_use, share_ring, switch_off, switch_on};

/// Threads whose CPU time is counted for the notifications.
#[derive(Clone, Debug)]
pub(crate) enum NoticeOf {
    /// These threads. The CPU time of each thread is counted separately.
    Threads(Vec<Tid>),
    /// All threads of the cgroup with this path. Their CPU time is counted together. If CPUs are
    /// given, the threads may use all these CPUs simultaneously. `None` if they use one CPU at a
    /// time.
    Group(PathBuf, Option<CpuSet>),
}

/// Notifications about the CPU time use of one vCPU.
#[derive(Debug)]
pub(crate) struct UseNotice {
    of: NoticeOf,
    /// CPU time between two notifications.
    every: Span,
    /// Rings into which the perf events write, by CPU.
    rings: UseRings,
    /// Open perf events, by the kernel's number of the CPU.
    events: BTreeMap<CpuId, Vec<OwnedFd>>,
    /// CPUs on which the perf events are switched on at present.
    on: Vec<CpuId>,
}

impl UseNotice {
    /// Creates the notifications of a vCPU: one each time that it has received `every` of CPU time.
    /// They are switched off at first.
    pub(crate) const fn new(of: NoticeOf, every: Span, rings: UseRings) -> UseNotice {
        UseNotice { of, every, rings, events: BTreeMap::new(), on: Vec::new() }
    }

    /// Switches the notifications on for `cpu`, the CPU to which the vCPU is pinned, or for all
    /// CPUs if `cpu` is `None`. For a cgroup that may use several CPUs simultaneously, switches
    /// them on for these CPUs instead.
    ///
    /// # Errors
    /// If the kernel does not support such perf events, or this process cannot open more
    /// descriptors.
    pub(crate) fn switch_on(&mut self, cpu: Option<CpuId>) -> io::Result<()> {
        let cpus: Vec<CpuId> = match (&self.of, cpu) {
            (NoticeOf::Group(_, Some(wide)), _) => wide.iter().collect(),
            (_, Some(cpu)) => vec![cpu],
            (_, None) => self.rings.0.keys().copied().collect(),
        };
        if self.on == cpus {
            return Ok(());
        }
        self.switch_off();
        // A vCPU that is not pinned needs an event on each CPU. Once it is pinned, the other events
        // are closed.
        if self.events.len() > cpus.len() {
            self.events.retain(|cpu, _| cpus.contains(cpu));
        }
        for cpu in cpus {
            if !self.events.contains_key(&cpu) {
                let opened = self.open(cpu)?;
                self.events.insert(cpu, opened);
            }
            self.on.push(cpu);
            self.events[&cpu].iter().try_for_each(|event| switch_on(event.as_fd()))?;
        }
        Ok(())
    }

    /// Switches the notifications off on all CPUs.
    pub(crate) fn switch_off(&mut self) {
        for cpu in std::mem::take(&mut self.on) {
            for event in self.events.get(&cpu).into_iter().flatten() {
                // If an event stays on, its only effect is additional dispatcher passes.
                let _ = switch_off(event.as_fd());
            }
        }
    }

    fn open(&self, cpu: CpuId) -> io::Result<Vec<OwnedFd>> {
        let ring = self.rings.0.get(&cpu).ok_or(io::ErrorKind::NotFound)?;
        let open = |counted: CountTarget<'_>| {
            let event = open_use(counted, cpu, self.every)?;
            share_ring(event.as_fd(), ring.as_fd())?;
            Ok(event)
        };
        match &self.of {
            NoticeOf::Threads(tids) => {
                let events = tids.iter().map(|&tid| open(CountTarget::Thread(tid)));
                // A thread that has exited uses no CPU time, so it needs no event.
                let is_there = |event: &io::Result<OwnedFd>| {
                    !event.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH))
                };
                events.filter(is_there).collect()
            }
            NoticeOf::Group(folder, _) => {
                let folder = File::open(folder)?;
                Ok(vec![open(CountTarget::Group(folder.as_fd()))?])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::event::{PollFd, PollFlags};

    use super::*;
    use crate::dispatcher::wait_for;
    use crate::watch::perf::PerfWatch;
    use slackline_linux::sys::own_tid;

    #[test]
    fn notifications_of_cpu_time_use_arrive_only_while_enabled() {
        let Ok((perf, _rings)) = PerfWatch::open() else {
            println!("skipped: needs perf events of whole CPUs");
            return;
        };
        let is_noticed = |most| {
            let fds: Vec<_> = perf.wake_fds().map(|(_, fd)| fd).collect();
            let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            wait_for(&mut fds, most)
        };
        let (tell, told) = std::sync::mpsc::channel();
        let is_over = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                tell.send(own_tid()).unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let of = NoticeOf::Threads(vec![told.recv().unwrap()]);
            let mut notice = UseNotice::new(of, Span::from_ms(1), perf.rings());
            notice.switch_on(None).unwrap();
            let first = is_noticed(Span::from_secs(30));
            notice.switch_off();
            // A notification may have arrived before the switch-off, so it is cleared first.
            is_noticed(Span::ZERO);
            let after = is_noticed(Span::from_ms(50));
            is_over.store(true, Ordering::Relaxed);
            assert!(first && !after, "notified while on: {first}, while off: {after}");
        });
    }
}
