//! A thread of ours that is more urgent than whatever is scheduled.

use std::io;
use std::marker::PhantomData;

use slackline_linux::step::FifoPriority;
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, get_scheduling, own_tid, set_scheduling,
};

/// The calling thread in real time, below the dispatchers and above whatever they run: so that it
/// does what it has to when that is due, on a busy machine too. Dropping it makes the thread again
/// what it was.
#[derive(Debug)]
pub struct Punctual {
    tid: Tid,
    before: SchedulingOf,
    /// It is about the thread that began it, and must not go to another.
    _of_this_thread: PhantomData<*const ()>,
}

impl Punctual {
    /// From now on.
    ///
    /// # Errors
    /// When the kernel refuses, as it does to ordinary users.
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
        // A thread may always become less urgent.
        let _ = set_scheduling(self.tid, &self.before);
    }
}
