//! Admission beside `SCHED_DEADLINE` threads of other programs. The kernel runs such threads before
//! all vCPUs of a session.

use std::collections::BTreeSet;

use slackline_linux::sys::Tid;
use slackline_units::{CpuId, Reservation, Span};
use thiserror::Error;

use super::Session;
use crate::mechanism::{DeadlineThread, Interference, check_interference};

/// Lack of CPU time on one CPU: deadline threads of other programs could make reservations of the
/// session miss deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not enough capacity on CPU {}: {found}", cpu.index())]
pub struct DeadlineConflict {
    /// CPU with too little time, by the kernel's number.
    pub cpu: CpuId,
    /// Window of time in which the deadline threads can take too much of the CPU.
    pub found: Interference,
}

impl DeadlineConflict {
    /// Advice for the user.
    pub const HINT: &str =
        "reserve less, or find the threads with `ps -eLo pid,tid,class,comm | grep DLN`";
}

impl Session {
    /// Checks that the session's CPUs have time for all reservations beside deadline threads of
    /// other programs. `threads` has the deadline threads of all programs. Threads that the session
    /// schedules are ignored, and so are threads that have left the class meanwhile. If the policy
    /// does not reserve slices on single CPUs, nothing is checked.
    ///
    /// # Errors
    /// If a CPU has too little time. The error names the first such CPU.
    pub fn check_deadline_threads(
        &self,
        threads: &[DeadlineThread],
    ) -> Result<(), DeadlineConflict> {
        let scheduled: BTreeSet<Tid> = self.threads().map(|thread| thread.tid).collect();
        let is_other = |one: &&DeadlineThread| !scheduled.contains(&one.tid) && one.is_there();
        let others: Vec<DeadlineThread> = threads.iter().filter(is_other).copied().collect();
        if others.is_empty() {
            return Ok(());
        }
        for (index, cpu) in self.host.real_cpus().enumerate() {
            let own = CpuId::new(index);
            // The next request reports that the session is over.
            let Ok(Some(reserved)) = self.reserved(own) else { continue };
            let Some(shortest) = self.shortest_period(own) else { continue };
            let there: Vec<Reservation> = DeadlineThread::on(&others, cpu).collect();
            let checked = check_interference(&there, reserved, shortest);
            checked.map_err(|found| DeadlineConflict { cpu, found })?;
        }
        Ok(())
    }

    /// Returns the shortest period of the reservations of members that may run on a CPU of the
    /// session. `None` if there is no such reservation.
    fn shortest_period(&self, cpu: CpuId) -> Option<Span> {
        let here =
            self.members().filter(|member| member.cpus.is_none_or(|cpus| cpus.contains(cpu)));
        let promises = here.filter_map(|member| (self.policy.promise)(member.share).ok().flatten());
        promises.map(|promise| promise.reservation.period()).min()
    }
}
