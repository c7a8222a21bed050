//! Events that a test or bench supplies.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::perf::WatchError;
use super::{DrainReport, Event, EventSource};

/// Queue of the events of one CPU. A test appends events, and the host reads them. Clones share the
/// queue.
#[derive(Clone, Debug, Default)]
pub struct FedEvents(Arc<Mutex<QueuedEvents>>);

#[derive(Debug, Default)]
struct QueuedEvents {
    events: VecDeque<Event>,
    /// Number of events that were dropped since the queue was last read.
    lost: u64,
}

impl FedEvents {
    /// Appends an event. Events must be appended in order of time.
    pub fn put(&self, event: Event) {
        self.fed().events.push_back(event);
    }

    /// Drops all events that were not read yet. The next read reports the loss.
    pub fn lose(&self) {
        let mut fed = self.fed();
        fed.lost += fed.events.len() as u64;
        fed.events.clear();
    }

    fn fed(&self) -> std::sync::MutexGuard<'_, QueuedEvents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventSource for FedEvents {
    fn drain(&mut self, each: &mut dyn FnMut(Event)) -> Result<DrainReport, WatchError> {
        let mut fed = self.fed();
        fed.events.drain(..).for_each(each);
        Ok(DrainReport { lost: std::mem::take(&mut fed.lost) })
    }

    fn has_unread(&self) -> bool {
        !self.fed().events.is_empty()
    }
}
