//! Events out of memory: what a test or a bench says that happens on a CPU.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::perf::WatchError;
use super::{Drained, Event, EventSource};

/// The events of one CPU, put in on one side and drained on the other. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct FedEvents(Arc<Mutex<Fed>>);

#[derive(Debug, Default)]
struct Fed {
    events: VecDeque<Event>,
    lost: u64,
}

impl FedEvents {
    /// Something happens, not before what was put in last.
    pub fn put(&self, event: Event) {
        self.fed().events.push_back(event);
    }

    /// All that has not been drained is lost, and the next drain says so.
    pub fn lose(&self) {
        let mut fed = self.fed();
        fed.lost += fed.events.len() as u64;
        fed.events.clear();
    }

    fn fed(&self) -> std::sync::MutexGuard<'_, Fed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventSource for FedEvents {
    fn drain(&mut self, each: &mut dyn FnMut(Event)) -> Result<Drained, WatchError> {
        let mut fed = self.fed();
        fed.events.drain(..).for_each(each);
        Ok(Drained { lost: std::mem::take(&mut fed.lost) })
    }
}
