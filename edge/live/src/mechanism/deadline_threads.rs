//! Threads of all programs that are under `SCHED_DEADLINE`. Deadline threads run before all vCPUs
//! of a dispatcher, so admission must take them into account.

use std::fs;
use std::path::Path;

use slackline_linux::sys::{Scheduling, Tid, get_affinity, get_scheduling};
use slackline_linux::thread::Stat;
use slackline_units::{CpuId, CpuSet, Reservation};

/// A thread under `SCHED_DEADLINE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlineThread {
    /// Id of the thread's process.
    pub pid: Tid,
    /// Id of the thread.
    pub tid: Tid,
    /// Runtime and period of the thread.
    pub each: Reservation,
    /// CPUs that the thread's affinity allows, by the kernel's numbers.
    pub cpus: CpuSet,
}

impl DeadlineThread {
    /// Returns the deadline threads of all programs, from procfs. Kernel threads are left out: the
    /// kernel uses the class only for their priority, and reserves nothing for them.
    #[must_use]
    pub fn all() -> Vec<DeadlineThread> {
        let folders = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
        let number = |name: std::ffi::OsString| name.to_str().and_then(|name| name.parse().ok());
        let mut found = Vec::new();
        for process in folders(Path::new("/proc")) {
            let Some(pid) = number(process.file_name()).and_then(Tid::new) else { continue };
            for thread in folders(&process.path().join("task")) {
                let tid = number(thread.file_name()).and_then(Tid::new);
                let Some(one) = tid.and_then(|tid| DeadlineThread::read(pid, tid)) else {
                    continue;
                };
                if Stat::of(pid, one.tid).is_ok_and(|stat| !stat.is_of_kernel()) {
                    found.push(one);
                }
            }
        }
        found
    }

    fn read(pid: Tid, tid: Tid) -> Option<DeadlineThread> {
        let Scheduling::Deadline { runtime, period, .. } = get_scheduling(tid).ok()?.class else {
            return None;
        };
        let each = Reservation::new(runtime, period).ok()?;
        Some(DeadlineThread { pid, tid, each, cpus: get_affinity(tid).ok()? })
    }

    /// Returns true if a thread with this thread's id still has this thread's runtime and period
    /// under `SCHED_DEADLINE`.
    #[must_use]
    pub fn is_there(&self) -> bool {
        DeadlineThread::read(self.pid, self.tid).is_some_and(|now| now.each == self.each)
    }

    /// Returns the runtime and period of each thread in `threads` whose affinity allows `cpu`.
    pub fn on(threads: &[DeadlineThread], cpu: CpuId) -> impl Iterator<Item = Reservation> {
        threads.iter().filter(move |thread| thread.cpus.contains(cpu)).map(|thread| thread.each)
    }
}

#[cfg(test)]
mod tests {
    use slackline_linux::sys::own_tid;
    use slackline_units::Span;

    use super::*;

    #[test]
    fn deadline_thread_counts_only_on_cpus_of_its_affinity() {
        let each = Reservation::new(Span::from_ms(5), Span::from_ms(10)).expect("valid");
        let cpus = CpuSet::one(CpuId::new(1));
        let threads = [DeadlineThread { pid: own_tid(), tid: own_tid(), each, cpus }];
        let on = |cpu| DeadlineThread::on(&threads, CpuId::new(cpu)).collect::<Vec<_>>();
        assert_eq!((on(0), on(1)), (vec![], vec![each]));
    }

    #[test]
    fn ordinary_thread_is_no_deadline_thread() {
        assert_eq!(DeadlineThread::read(own_tid(), own_tid()), None);
        assert!(DeadlineThread::all().iter().all(|thread| thread.tid != own_tid()));
    }
}
