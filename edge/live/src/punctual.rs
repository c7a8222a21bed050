//! Real-time priority for a thread of Slackline itself, above all threads that Slackline schedules.

use std::io;
use std::marker::PhantomData;

use slackline_linux::step::FifoPriority;
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, get_scheduling, own_tid, set_scheduling,
};

/// Makes the calling thread real-time, with a priority below the dispatchers and above the threads
/// that they schedule. So the thread works on time even on a busy host. Dropping this value
/// restores the thread's scheduling.
#[derive(Debug)]
pub struct Punctual {
    tid: Tid,
    before: SchedulingOf,
    /// Marker that makes the type `!Send`, since the priority belongs to the thread that created
    /// the value.
    _of_this_thread: PhantomData<*const ()>,
}

impl Punctual {
    /// Makes the calling thread real-time until the returned value is dropped.
    ///
    /// # Errors
    /// If the kernel refuses, because the user lacks the privilege.
    pub fn begin() -> io::Result<Punctual> {
        let tid = own_tid();
        let before = get_scheduling(tid)?;
        let class = Scheduling::Fifo { priority: FifoPriority::KEEPER.number().into() };
        set_scheduling(tid, &SchedulingOf { class, reset_on_fork: true })?;
        Ok(Punctual { tid, before, _of_this_thread: PhantomData })
    }
}

impl Drop for Punctual {
    fn drop(&mut self) {
        // A thread may always lower its own priority.
        let _ = set_scheduling(self.tid, &self.before);
    }
}
