//! Tap of a session: a copy of the events that the session reads, for a flight recorder. So the
//! flight recorder needs no events of its own from the kernel.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use slackline_units::CpuId;

use super::host::Loss;
use super::perf::WatchError;
use super::{DrainReport, Event, EventSource};

/// Maximum number of copied events of one CPU that wait for the recorder. At 40,000 events per
/// second, this number suffices for 1.6 s.
const LIMIT: usize = 1 << 16;

/// Tap that copies the events of all CPUs. It copies nothing until it is turned on.
#[derive(Debug, Default)]
pub struct Tap {
    is_on: AtomicBool,
    cpus: Vec<(CpuId, Mutex<EventBuffer>)>,
}

/// Copied events of one CPU that the recorder has not taken yet.
#[derive(Debug, Default)]
struct EventBuffer {
    events: Vec<Event>,
    /// Number of events that were lost after the recorder last took events.
    lost: u64,
}

impl Tap {
    /// Creates a tap for these CPUs of the host. The tap is turned off at first.
    #[must_use]
    pub fn new(cpus: impl Iterator<Item = CpuId>) -> Tap {
        let cpus = cpus.map(|cpu| (cpu, Mutex::default())).collect();
        Tap { is_on: AtomicBool::new(false), cpus }
    }

    /// Starts copying the events of all CPUs.
    pub fn turn_on(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Appends the events copied since the last call, and returns the losses of each CPU.
    pub fn take(&self, into: &mut Vec<Event>) -> Vec<Loss> {
        let mut losses = Vec::new();
        for (cpu, noted) in &self.cpus {
            let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
            into.append(&mut noted.events);
            let events = std::mem::take(&mut noted.lost);
            if events > 0 {
                losses.push(Loss { cpu: *cpu, events });
            }
        }
        losses
    }

    fn add(&self, place: usize, events: &[Event], lost: u64) {
        let Some((_, noted)) = self.cpus.get(place) else { return };
        let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
        let room = LIMIT.saturating_sub(noted.events.len()).min(events.len());
        noted.events.extend_from_slice(&events[..room]);
        noted.lost += lost + u64::try_from(events.len() - room).unwrap_or(u64::MAX);
    }
}

/// Event source that copies its events to a tap when they are read.
pub(crate) struct TappedSource<S> {
    source: S,
    tap: Arc<Tap>,
    /// Index of the CPU in the tap.
    place: usize,
    /// Events of one read. The vector is kept, so that its memory is used again.
    batch: Vec<Event>,
}

impl<S: EventSource> TappedSource<S> {
    /// Creates a source that copies the events of `source` to `tap`. `place` is the index of the
    /// source's CPU in the tap.
    pub(crate) fn new(source: S, tap: &Arc<Tap>, place: usize) -> TappedSource<S> {
        TappedSource { source, tap: Arc::clone(tap), place, batch: Vec::new() }
    }
}

impl<S: EventSource> EventSource for TappedSource<S> {
    fn drain(&mut self, each: &mut dyn FnMut(Event)) -> Result<DrainReport, WatchError> {
        if !self.tap.is_on.load(Ordering::Relaxed) {
            return self.source.drain(each);
        }
        let batch = &mut self.batch;
        batch.clear();
        let drained = self.source.drain(&mut |event| {
            batch.push(event);
            each(event);
        });
        let lost = drained.as_ref().map_or(0, |drained| drained.lost);
        if !self.batch.is_empty() || lost > 0 {
            self.tap.add(self.place, &self.batch, lost);
        }
        drained
    }

    fn has_unread(&self) -> bool {
        self.source.has_unread()
    }
}

#[cfg(test)]
mod tests {
    use slackline_linux::sys::own_tid;
    use slackline_units::Time;

    use super::*;
    use crate::watch::ThreadEventKind;
    use crate::watch::fed::FedEvents;

    #[test]
    fn event_tap_copies_events_only_while_enabled_and_counts_losses() {
        let cpu = CpuId::new(3);
        let (tap, fed) = (Arc::new(Tap::new([cpu].into_iter())), FedEvents::default());
        let mut tapped = TappedSource::new(fed.clone(), &tap, 0);
        let event =
            Event { at: Time::from_ns(7), tid: own_tid(), cpu, what: ThreadEventKind::SwitchedIn };
        let (mut seen, mut copied) = (0, Vec::new());
        fed.put(event);
        tapped.drain(&mut |_| seen += 1).expect("fed events are well-formed");
        assert!(tap.take(&mut copied).is_empty() && copied.is_empty());
        tap.turn_on();
        (0..=LIMIT).for_each(|_| fed.put(event));
        tapped.drain(&mut |_| seen += 1).expect("fed events are well-formed");
        assert_eq!(seen, LIMIT + 2);
        assert_eq!(tap.take(&mut copied), [Loss { cpu, events: 1 }]);
        assert_eq!((copied.len(), copied[0]), (LIMIT, event));
        assert!(tap.take(&mut copied).is_empty());
    }
}
