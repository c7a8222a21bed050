//! Queue of the flight recorder. In this queue, events of the session and queries of clients wait
//! for the recorder thread.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError};

use slackline_control::{Kind, Problem};
use slackline_linux::sys::monotonic;
use slackline_live::session::SessionThread;
use slackline_live::watch::Event;
use slackline_live::watch::host::Loss;
use slackline_service::{Principal, Ticket};
use slackline_trace::Entry;
use slackline_units::Time;

use super::super::whatif::RecordingOrder;
use super::{Own, Question};

/// Maximum number of messages in the recorder's queue. The daemon's main thread sends 256 messages
/// in about a second if it handles many requests, and in 25 s if it is idle.
pub(super) const QUEUE: usize = 256;

/// Maximum number of unanswered queries of all clients together. Each principal has a lower limit
/// of its own. That limit counts queries for the timeline separately, because they are quick and
/// frequent.
const MOST_ASKED: usize = 64;
const MOST_ASKED_EACH: usize = 4;

/// Maximum number of session entries that are kept for the next message while the recorder's queue
/// is full.
const MOST_KEPT: usize = 100_000;

/// Message from the daemon's main thread to the recorder thread.
pub(super) enum FlightOrder {
    Batch(Box<Batch>),
    Ask(Box<FlightQuery>),
    /// Copy the most recent part of the ring for a prediction.
    Window(RecordingOrder),
}

/// Query of a client on its way to the recorder thread.
pub(super) struct FlightQuery {
    pub(super) ticket: Ticket,
    pub(super) principal: Principal,
    pub(super) question: Question,
    pub(super) own: Own,
    pub(super) is_cancelled: Arc<AtomicBool>,
}

/// Message with the events that arrived after the previous message to the recorder thread was sent.
pub(super) struct Batch {
    pub(super) entries: Vec<Entry>,
    pub(super) events: Vec<Event>,
    pub(super) losses: Vec<Loss>,
    /// Threads of all vCPUs. `None` if they have not changed since the last message.
    pub(super) threads: Option<Vec<SessionThread>>,
    /// Time at which the message was sent to the recorder thread, on the monotonic clock.
    pub(super) at: Time,
    pub(super) has_gap: bool,
}

/// Class of a query, for the limit on unanswered queries: the principal that sent the query, and
/// true if the query is for the timeline.
type QueryClass = (Principal, bool);

/// Sending end of the flight recorder's queue, which the daemon's main thread has.
pub(super) struct FlightQueue {
    orders: SyncSender<FlightOrder>,
    /// Threads of all vCPUs, if they have changed since the last message.
    threads: Option<Vec<SessionThread>>,
    /// Session entries, such as names of vCPUs, that did not fit in the recorder's queue. They are
    /// sent with the next message.
    kept: Vec<Entry>,
    /// True if events were dropped because the recorder's queue was full.
    has_gap: bool,
    /// Queries that the recorder has not answered. The flag is true if the caller has disconnected.
    asked: BTreeMap<Ticket, (QueryClass, Arc<AtomicBool>)>,
}

impl FlightQueue {
    pub(super) fn new(orders: SyncSender<FlightOrder>) -> FlightQueue {
        let (threads, kept, asked) = (None, Vec::new(), BTreeMap::new());
        FlightQueue { orders, threads, kept, has_gap: false, asked }
    }

    /// Sends the recorder what has happened since the last call: the scheduling session's `entries`
    /// and the CPUs' events. If the queue is full, the events of the CPUs are dropped, and the
    /// entries of the session are sent with the next call. `threads` are the threads of all vCPUs,
    /// or `None` if they have not changed since the last call.
    pub(super) fn send(
        &mut self,
        entries: &[Entry],
        (events, losses): (Vec<Event>, Vec<Loss>),
        threads: Option<Vec<SessionThread>>,
    ) {
        let threads = threads.or(self.threads.take());
        let has_gap = std::mem::take(&mut self.has_gap);
        let mut all = std::mem::take(&mut self.kept);
        all.extend_from_slice(entries);
        let (entries, at) = (all, monotonic());
        let seen = Batch { entries, events, losses, threads, at, has_gap };
        match self.orders.try_send(FlightOrder::Batch(Box::new(seen))) {
            Ok(()) => {}
            Err(TrySendError::Full(FlightOrder::Batch(seen))) => {
                self.has_gap = true;
                self.threads = seen.threads;
                self.kept = seen.entries;
                self.kept.truncate(MOST_KEPT);
            }
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.has_gap = true,
        }
    }

    /// Sends a client's query to the flight recorder.
    ///
    /// # Errors
    /// If the recorder has too many unanswered queries of this principal or in total, or has ended.
    pub(super) fn ask(
        &mut self,
        (ticket, principal): (Ticket, Principal),
        question: Question,
        own: Own,
    ) -> Result<(), Problem> {
        let class = (principal, matches!(question, Question::Timeline(_)));
        let of_principal = self.asked.values().filter(|(of, _)| *of == class).count();
        if of_principal >= MOST_ASKED_EACH {
            let detail = format!(
                "this user already has {of_principal} queries that wait for the flight recorder; \
                 at most {MOST_ASKED_EACH} are allowed"
            );
            let problem = Problem::new(Kind::TooMany, detail);
            return Err(problem.hinting("wait for the answers to the earlier queries"));
        }
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let asked = (class, Arc::clone(&is_cancelled));
        let query = Box::new(FlightQuery { ticket, principal, question, own, is_cancelled });
        if self.asked.len() >= MOST_ASKED {
            return Err(behind());
        }
        self.orders.try_send(FlightOrder::Ask(query)).map_err(|error| not_sent(&error))?;
        self.asked.insert(ticket, asked);
        Ok(())
    }

    /// Cancels a query whose caller has disconnected. The query counts as unanswered until the
    /// recorder drops it.
    pub(super) fn cancel(&self, ticket: Ticket) {
        if let Some((_, is_cancelled)) = self.asked.get(&ticket) {
            is_cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// Orders the recorder to copy its latest events for a prediction. If the recorder cannot take
    /// the order, the prediction fails with the reason.
    pub(super) fn window(&self, order: RecordingOrder) {
        let Err(error) = self.orders.try_send(FlightOrder::Window(order)) else { return };
        let problem = not_sent(&error);
        let (TrySendError::Full(order) | TrySendError::Disconnected(order)) = error;
        if let FlightOrder::Window(order) = order {
            order.take(Err(problem));
        }
    }

    /// Notes that the recorder has answered a query.
    pub(super) fn answered(&mut self, ticket: Ticket) {
        self.asked.remove(&ticket);
    }
}

/// Returns the next order for the recorder. Events come before queries, so an event waits at most
/// until the recorder has answered one query. `queries` contains the queries that were received and
/// not yet returned. Returns `None` after the last order, if the sender has ended.
pub(super) fn next_order(
    orders: &Receiver<FlightOrder>,
    queries: &mut VecDeque<FlightOrder>,
) -> Option<FlightOrder> {
    loop {
        match orders.try_recv() {
            Ok(order @ FlightOrder::Batch(_)) => return Some(order),
            Ok(query) => queries.push_back(query),
            Err(_) if !queries.is_empty() => return queries.pop_front(),
            Err(TryRecvError::Empty) => match orders.recv().ok()? {
                order @ FlightOrder::Batch(_) => return Some(order),
                query => queries.push_back(query),
            },
            Err(TryRecvError::Disconnected) => return None,
        }
    }
}

/// Returns the reason why the recorder did not take an order.
fn not_sent(error: &TrySendError<FlightOrder>) -> Problem {
    match error {
        TrySendError::Full(_) => behind(),
        TrySendError::Disconnected(_) => {
            let detail = "the flight recorder has ended because of a fault in the daemon";
            let hint = "read the daemon's log, and restart the daemon to record again";
            Problem::new(Kind::NotNow, detail).hinting(hint)
        }
    }
}

fn behind() -> Problem {
    let detail = "the flight recorder has not yet processed the latest events";
    Problem::new(Kind::NotNow, detail).hinting("ask again in a second")
}

pub(super) fn disconnected() -> Problem {
    Problem::new(Kind::NotNow, "the caller has disconnected")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use slackline_trace::VcpuName;
    use slackline_units::{DomId, VcpuId};

    use super::*;

    fn named(name: &str) -> Entry {
        let (at, vcpu) = (Time::START, VcpuId::new(0, DomId::new(0), 0));
        Entry::Named(VcpuName { at, vcpu, name: name.into(), domain: name.into() })
    }

    fn queue(length: usize) -> (FlightQueue, Receiver<FlightOrder>) {
        let (orders, receiver) = sync_channel(length);
        (FlightQueue::new(orders), receiver)
    }

    fn send(queue: &mut FlightQueue, name: &str) {
        queue.send(&[named(name)], (Vec::new(), Vec::new()), None);
    }

    fn next(receiver: &Receiver<FlightOrder>) -> (Vec<Entry>, bool) {
        let mut queries = VecDeque::new();
        match next_order(receiver, &mut queries) {
            Some(FlightOrder::Batch(batch)) => (batch.entries, batch.has_gap),
            _ => panic!("no events"),
        }
    }

    #[test]
    fn vcpu_names_reach_flight_recorder_despite_full_queue() {
        let (mut queue, receiver) = queue(1);
        ["a", "b", "c"].into_iter().for_each(|name| send(&mut queue, name));
        assert_eq!(next(&receiver), (vec![named("a")], false));
        send(&mut queue, "d");
        assert_eq!(next(&receiver), (vec![named("b"), named("c"), named("d")], true));
        send(&mut queue, "e");
        assert_eq!(next(&receiver), (vec![named("e")], false));
    }

    #[test]
    fn flight_recorder_handles_queued_events_before_queued_queries() {
        let (mut queue, receiver) = queue(QUEUE);
        let asker = |ticket| (Ticket(ticket), Principal::User(1));
        queue.ask(asker(1), Question::Incidents, None).unwrap();
        queue.ask(asker(2), Question::Predictions, None).unwrap();
        send(&mut queue, "a");
        let mut queries = VecDeque::new();
        let mut next = || next_order(&receiver, &mut queries);
        assert!(matches!(next(), Some(FlightOrder::Batch(_))));
        assert!(matches!(next(), Some(FlightOrder::Ask(query)) if query.ticket == Ticket(1)));
        send(&mut queue, "b");
        assert!(matches!(next(), Some(FlightOrder::Batch(_))));
        drop(queue);
        assert!(matches!(next(), Some(FlightOrder::Ask(query)) if query.ticket == Ticket(2)));
        assert!(next().is_none());
    }

    #[test]
    fn query_after_end_of_recorder_is_refused_with_reason() {
        let (mut queue, receiver) = queue(QUEUE);
        drop(receiver);
        let asked = queue.ask((Ticket(1), Principal::User(1)), Question::Incidents, None);
        let detail = asked.expect_err("there is no recorder").detail;
        assert!(detail.contains("the flight recorder has ended"), "{detail}");
    }

    #[test]
    fn unanswered_recorder_queries_are_limited_per_user_and_in_total() {
        let (mut queue, receiver) = queue(QUEUE);
        let mut ask = |ticket: u64, user| {
            let asker = (Ticket(ticket), Principal::User(user));
            let asked = queue.ask(asker, Question::Incidents, None);
            if ticket == 2 {
                queue.cancel(Ticket(2));
            }
            asked.map_err(|problem| problem.kind)
        };
        for ticket in 0..4 {
            assert_eq!(ask(ticket, 1), Ok(()));
        }
        assert_eq!(ask(4, 1), Err(Kind::TooMany), "a cancelled query counts too");
        for ticket in 4..64 {
            assert_eq!(ask(ticket, 1_000 + u32::try_from(ticket / 4).unwrap()), Ok(()));
        }
        assert_eq!(ask(64, 2), Err(Kind::NotNow));
        let cancelled = receiver.try_iter().filter(|order| match order {
            FlightOrder::Ask(query) => query.is_cancelled.load(Ordering::Relaxed),
            _ => false,
        });
        assert_eq!(cancelled.count(), 1);
        queue.answered(Ticket(0));
        let asker = (Ticket(65), Principal::User(1));
        assert_eq!(queue.ask(asker, Question::Incidents, None), Ok(()));
        queue.answered(Ticket(4));
        let asker = (Ticket(66), Principal::User(1));
        assert_eq!(queue.ask(asker, Question::Timeline(0), None), Ok(()));
    }
}
