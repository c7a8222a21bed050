//! CPU time that threads of a process tree use outside the cgroup of the tree. The kernel does not
//! count this time for the cgroup, so the session computes it at each audit. An audit finds the
//! threads that have left the cgroup.

use std::collections::BTreeMap;

use slackline_units::{Span, Time};

use super::ids::JoinId;
use super::{Session, SessionError};
use slackline_linux::sys::{Tid, thread_cpu_time};

/// Result of an audit of a process tree: the CPU times of its cgroup and of its threads.
#[derive(Debug, Default)]
pub(super) struct AuditTimes {
    at: Time,
    /// CPU time that the cgroup of the tree had used.
    group: Span,
    /// CPU time that each thread had used, inside and outside the cgroup together.
    threads: BTreeMap<Tid, Span>,
}

impl AuditTimes {
    /// Returns the CPU time that the threads in `left` have used outside the cgroup since the audit
    /// `before`. This time is the part of the threads' CPU time that the cgroup has not counted. If
    /// some threads of the cgroup have ended since `before`, the result may be too small.
    fn outside(&self, before: &AuditTimes, left: &[Tid]) -> Span {
        let more = |tid: &Tid| {
            let now = self.threads.get(tid).copied().unwrap_or_default();
            now.left_after(before.threads.get(tid).copied().unwrap_or_default())
        };
        let of_all = self.threads.keys().map(more).fold(Span::ZERO, |sum, more| sum + more);
        let of_left = left.iter().map(more).fold(Span::ZERO, |sum, more| sum + more);
        of_all.left_after(self.group.left_after(before.group)).min(of_left)
    }
}

impl Session {
    /// Records the CPU time that threads of a process tree have used outside its cgroup since the
    /// last audit. `used` is the total CPU time that the cgroup has counted. `there` has the
    /// threads in the cgroup, and `left` the threads that have left the cgroup.
    pub(super) fn count_outside(
        &mut self,
        id: JoinId,
        used: Option<Span>,
        (there, left): (&[Tid], &[Tid]),
    ) -> Result<(), SessionError> {
        let now = self.host.now();
        let (Some(used), Some(row)) = (used, self.members.get_mut(id)) else { return Ok(()) };
        if there.is_empty() && left.is_empty() {
            return Ok(());
        }
        let threads = there.iter().chain(left);
        // A thread that has ended has no clock.
        let threads = threads.filter_map(|&tid| Some((tid, thread_cpu_time(tid).ok()?))).collect();
        let times = AuditTimes { at: now, group: used, threads };
        let before = row.changes.audit.take();
        let outside = before.as_ref().map(|before| (before.at, times.outside(before, left)));
        row.changes.audit = Some(times);
        let width = row.tree.as_ref().map_or(1, |tree| tree.width() as u64);
        match outside {
            Some((since, outside)) if !outside.is_zero() => {
                Ok(self.host.count_outside(id.vcpu(), since, outside / width)?)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tid(number: i32) -> Tid {
        Tid::new(number).expect("thread ids are positive")
    }

    fn times(group: u64, threads: &[(i32, u64)]) -> AuditTimes {
        let threads = threads.iter().map(|&(id, used)| (tid(id), Span::from_ms(used)));
        AuditTimes { at: Time::START, group: Span::from_ms(group), threads: threads.collect() }
    }

    #[test]
    fn cpu_time_that_thread_used_outside_its_cgroup_is_counted() {
        let before = times(100, &[(1, 40), (2, 60)]);
        // Thread 2 ran for 5 ms in the cgroup and for 45 ms outside.
        let now = times(115, &[(1, 50), (2, 110)]);
        assert_eq!(now.outside(&before, &[tid(2)]), Span::from_ms(45));
        assert_eq!(now.outside(&before, &[]), Span::ZERO);
    }

    #[test]
    fn all_cpu_time_of_thread_started_outside_cgroup_is_counted() {
        let (before, now) = (times(10, &[(1, 10)]), times(12, &[(1, 12), (3, 30)]));
        assert_eq!(now.outside(&before, &[tid(3)]), Span::from_ms(30));
    }

    /// In this test, thread 7 ran for 20 ms in the cgroup and has ended.
    #[test]
    fn cpu_time_outside_cgroup_never_exceeds_time_of_departed_threads() {
        let before = times(0, &[(1, 0), (2, 0)]);
        let now = times(40, &[(1, 20), (2, 15)]);
        assert_eq!(now.outside(&before, &[tid(2)]), Span::ZERO);
        let now = times(0, &[(1, 20), (2, 15)]);
        assert_eq!(now.outside(&before, &[tid(2)]), Span::from_ms(15));
    }
}
