//! The flight recorder: keeps the last minute of all managed CPUs, and saves a recording of each
//! missed deadline.
//!
//! The core (the daemon's main thread) passes the scheduling events of its session to the recorder,
//! a separate thread that keeps them and answers queries. The recorder does not take part in
//! scheduling. If it falls behind, the core drops events, which are then missing in recordings.

mod queue;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError, channel, sync_channel};
use std::thread::Builder;
use std::time::{SystemTime, UNIX_EPOCH};

use slackline_control::link::Answer;
use slackline_control::{Incident, Kind, Prediction, Problem, Recording};
use slackline_linux::sys::{monotonic, online_cpus};
use slackline_live::recorder::assembler::Assembler;
use slackline_live::recorder::host::{follow, notes};
use slackline_live::recorder::identity::Procfs;
use slackline_live::recorder::offline::OfflineCpus;
use slackline_live::recorder::ring::FlightRing;
use slackline_live::session::{Session, SessionThread};
use slackline_live::topology;
use slackline_live::watch::Event;
use slackline_live::watch::host::{Loss, take_until};
use slackline_live::watch::tap::Tap;
use slackline_metrics::{CulpritFinder, Meter};
use slackline_service::{NO_RESERVATION, Principal, Ticket};
use slackline_trace::{Entry, Header, Record, Sink, VcpuName, WakeMark};
use slackline_units::{CpuId, Span, Time, VcpuId};

use super::incidents::Incidents;
use super::own::{OwnVms, may_see};
use super::predictions::{MOST_LISTED, Predictions};
use super::timeline::{TimelineKeeper, TimelineSink};
use super::whatif::RecordingOrder;
use crate::record::culprits_for;
use queue::{Batch, FlightOrder, FlightQuery, FlightQueue, QUEUE, disconnected, next_order};

/// Maximum size of the ring of recent events, in bytes. [`RING_LENGTH`] limits the time that the
/// ring covers.
const RING_BYTES: usize = 16 << 20;
const RING_LENGTH: Span = Span::from_secs(60);

/// Length of time covered by one piece of the ring. The ring drops whole pieces.
const PIECE: Span = Span::from_ms(250);

/// Maximum length of a piece that has fewer events than vCPUs. Each piece begins with the names of
/// all vCPUs, so shorter pieces would consist mostly of names.
const QUIET_PIECE: Span = Span::from_secs(1);

/// Age from which the order of events is final: no CPU reports an earlier event any more.
/// Dispatchers read events at least every 20 ms.
const SETTLED: Span = Span::from_ms(60);

/// Length of time that a recording covers before and after a missed deadline.
const AROUND: Span = Span::from_secs(1);

/// Minimum interval at which the recorder thread checks for missed deadlines.
const LOOK: Span = Span::from_ms(500);

/// Minimum interval between two such checks, as a multiple of the time that the last check took.
/// With hundreds of vCPUs a check takes milliseconds.
const RARELY: u64 = 1_000;

/// Maximum duration of a check that counts for the interval until the next check. So this interval
/// is at most 1 s. A longer interval could save a recording more than 1 s after its end.
const LONGEST_LOOK: Span = Span::from_ms(1);

/// Minimum interval between two incidents of one VM.
const PAUSE: Span = Span::from_secs(60);

/// Maximum number of incidents (recordings of missed deadlines) that are not complete yet.
const MOST_OPEN: usize = 16;

/// Time for which the recorder still counts missed deadlines of a vCPU that has left. It starts
/// when another vCPU gets the slot (index in the session) of that vCPU.
const LATE: Span = Span::from_secs(60);

/// Handle with which the daemon's main thread uses the flight recorder.
pub(super) struct Flight {
    queue: FlightQueue,
    replies: Receiver<FlightReply>,
    tap: Arc<Tap>,
    /// Number of incidents saved since the daemon started.
    pub(super) incidents: u64,
}

/// VMs that a caller may see. `None` if the caller may see all VMs.
pub(super) type Own = Option<OwnVms>;

/// Query of a client that the flight recorder answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// Causes of the waiting time (culprits) of the VM with this name.
    Why(String),
    /// Causes of the waiting time (culprits) in the recording of a saved incident, by its number.
    Incident(u64),
    Incidents,
    Record(Span),
    Predict(Vec<Prediction>),
    Predictions,
    /// Complete columns of the timeline, from the column with this number on.
    Timeline(u64),
}

/// Message from the recorder thread to the daemon's main thread.
pub(super) enum FlightReply {
    Answer(Ticket, Result<Answer, Problem>),
    /// The recording of an incident was saved, or saving it failed.
    Incident(Result<Incident, String>),
}

impl Flight {
    /// Starts the recorder for the CPUs of a session. The session must have [recorded
    /// exchanges](Session::keep_exchanges) since its first join. Otherwise recordings lack the
    /// parameters of vCPUs that joined before.
    pub(super) fn start(
        session: &Session,
        cpus: &[CpuId],
        header: Header,
        state: &Path,
    ) -> io::Result<Flight> {
        let tap = session.tap();
        let (orders, receiver) = sync_channel(QUEUE);
        let (sender, replies) = channel();
        let origin = session.origin();
        let header = Header { groups: topology::of(cpus).levels(), ..header };
        let (cpus, folder) = (cpus.to_vec(), state.join("incidents"));
        let state = state.to_owned();
        let work = move || {
            // Without the folder, the recorder can still answer questions.
            let incidents = Incidents::open(&folder, wall_ns()).unwrap_or_else(|error| {
                let text = format!("cannot open {}: {error}", folder.display());
                let _ = sender.send(FlightReply::Incident(Err(text)));
                Incidents::empty(&folder)
            });
            let kept = (incidents, Predictions::open(&state));
            let mut recorder = FlightThread::new((origin, &cpus), header, kept);
            let (mut queries, mut batches) = (VecDeque::new(), 0);
            loop {
                // Events come first, but a recorder that is always behind also answers queries.
                let due = if batches < QUEUE { None } else { queries.pop_front() };
                let Some(order) = due.or_else(|| next_order(&receiver, &mut queries)) else {
                    return;
                };
                batches = if matches!(order, FlightOrder::Batch(_)) { batches + 1 } else { 0 };
                for reply in recorder.take(order) {
                    if sender.send(reply).is_err() {
                        return;
                    }
                }
            }
        };
        Builder::new().name("slackline-flight".into()).spawn(work)?;
        Ok(Flight { queue: FlightQueue::new(orders), replies, tap, incidents: 0 })
    }

    /// Passes the events that the session has recorded to the recorder thread.
    /// `threads` are the threads of all vCPUs, or `None` if they have not changed since the last
    /// call.
    pub(super) fn hand_over(&mut self, entries: &[Entry], threads: Option<Vec<SessionThread>>) {
        let mut events = Vec::new();
        let losses = self.tap.take(&mut events);
        self.queue.send(entries, (events, losses), threads);
    }

    /// Sends a client's query to the flight recorder.
    ///
    /// # Errors
    /// If the recorder has too many unanswered queries of this principal or in total, or has ended.
    pub(super) fn ask(
        &mut self,
        asker: (Ticket, Principal),
        question: Question,
        own: Own,
    ) -> Result<(), Problem> {
        self.queue.ask(asker, question, own)
    }

    /// Cancels a query whose caller has disconnected.
    pub(super) fn cancel(&self, ticket: Ticket) {
        self.queue.cancel(ticket);
    }

    /// Orders the recorder to copy its latest events for a prediction. If the recorder cannot take
    /// the order, the prediction fails with the reason.
    pub(super) fn window(&self, order: RecordingOrder) {
        self.queue.window(order);
    }

    /// Returns the replies that have arrived from the recorder since the last call.
    pub(super) fn replies(&mut self) -> Vec<FlightReply> {
        let mut replies = Vec::new();
        loop {
            match self.replies.try_recv() {
                Ok(reply) => {
                    self.incidents += u64::from(matches!(reply, FlightReply::Incident(Ok(_))));
                    if let FlightReply::Answer(ticket, _) = &reply {
                        self.queue.answered(*ticket);
                    }
                    replies.push(reply);
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return replies,
            }
        }
    }
}

/// State of the flight recorder, which runs in a thread of its own.
struct FlightThread {
    origin: Time,
    header: Header,
    cpus: Vec<CpuId>,
    assembler: Assembler<Procfs>,
    ring: FlightRing,
    names: BTreeMap<VcpuId, (String, String)>,
    /// vCPUs that have joined the session. Some have no thread yet.
    joined: BTreeSet<VcpuId>,
    threads: BTreeSet<SessionThread>,
    /// Recent events whose order is not final yet, because a CPU can still report an earlier event.
    waiting: Vec<Event>,
    offline: OfflineCpus,
    piece: Vec<Entry>,
    piece_from: Time,
    settled: Time,
    meter: Meter,
    missed: BTreeMap<VcpuId, u64>,
    looked: Time,
    /// Duration of the last check for missed deadlines.
    look_took: Span,
    open: Vec<OpenIncident>,
    last: BTreeMap<String, Time>,
    incidents: Incidents,
    predictions: Predictions,
    timeline: TimelineKeeper,
}

/// A missed deadline whose recording is not complete yet.
struct OpenIncident {
    name: String,
    missed: u64,
    from: Time,
    until: Time,
}

impl FlightThread {
    fn new(
        (origin, cpus): (Time, &[CpuId]),
        header: Header,
        (incidents, predictions): (Incidents, Predictions),
    ) -> FlightThread {
        let numbered = cpus.iter().enumerate().map(|(index, &real)| (real, CpuId::new(index)));
        FlightThread {
            origin,
            assembler: Assembler::new(
                origin,
                numbered,
                (WakeMark::Wakeup, Procfs::new(BTreeMap::new())),
            ),
            ring: FlightRing::new(&header, RING_BYTES, RING_LENGTH),
            meter: Meter::new(&header),
            header,
            cpus: cpus.to_vec(),
            names: BTreeMap::new(),
            joined: BTreeSet::new(),
            threads: BTreeSet::new(),
            waiting: Vec::new(),
            offline: OfflineCpus::new(origin),
            piece: Vec::new(),
            piece_from: Time::START,
            settled: origin,
            missed: BTreeMap::new(),
            looked: Time::START,
            look_took: Span::ZERO,
            open: Vec::new(),
            last: BTreeMap::new(),
            incidents,
            predictions,
            timeline: TimelineKeeper::new(cpus),
        }
    }

    fn take(&mut self, order: FlightOrder) -> Vec<FlightReply> {
        match order {
            FlightOrder::Batch(seen) => self.seen(*seen),
            FlightOrder::Window(order) if order.is_cancelled() => {
                order.take(Err(disconnected()));
                Vec::new()
            }
            FlightOrder::Window(order) => {
                self.end_piece();
                let (since, own) = order.needs();
                let window = self.window(since, own.as_ref());
                order.take(window);
                Vec::new()
            }
            FlightOrder::Ask(query) if query.is_cancelled.load(Ordering::Relaxed) => {
                vec![FlightReply::Answer(query.ticket, Err(disconnected()))]
            }
            FlightOrder::Ask(query) => {
                let FlightQuery { ticket, principal, question, own, .. } = *query;
                // Queries for the timeline are frequent and do not read the ring. So they do not
                // end the current piece of the ring.
                if !matches!(question, Question::Timeline(_)) {
                    self.end_piece();
                }
                let answer = match question {
                    Question::Why(name) => self.why(&name, own.as_ref()),
                    Question::Incident(id) => self.incidents.why(id, own.as_ref()),
                    Question::Incidents => Ok(Answer::Incidents(self.listed(own.as_ref()))),
                    Question::Record(since) => self.record(since),
                    Question::Predict(predictions) => {
                        self.predict(principal, predictions, own.as_ref())
                    }
                    Question::Predictions => Ok(self.predicted(own.as_ref())),
                    Question::Timeline(from) => Ok(self.pictured(from, own.as_ref())),
                };
                vec![FlightReply::Answer(ticket, answer)]
            }
        }
    }

    fn seen(&mut self, seen: Batch) -> Vec<FlightReply> {
        let Batch { entries, mut events, losses, threads, at, has_gap } = seen;
        for entry in &entries {
            entry.pass_to(&mut self.meter);
            match entry {
                Entry::Named(VcpuName { vcpu, name, domain, .. }) => {
                    self.names.insert(*vcpu, (name.clone(), domain.clone()));
                }
                Entry::Record(Record::Joined { vcpu, .. }) => {
                    self.joined.insert(*vcpu);
                }
                Entry::Record(Record::Left { vcpu, .. }) => {
                    self.joined.remove(vcpu);
                }
                _ => {}
            }
        }
        self.piece.extend(entries);
        if let Some(threads) = threads {
            self.know(threads.into_iter().collect());
        }
        let gaps = self.cpus.iter().map(|&cpu| Loss { cpu, events: 1 });
        let gaps: Vec<Loss> = gaps.filter(|_| has_gap).chain(losses).collect();
        for Loss { cpu, events } in gaps {
            self.assembler.lost(cpu, (self.settled, at), events, &mut self.piece);
        }
        self.waiting.append(&mut events);
        let until = Time::START + at.since(Time::START + SETTLED);
        let events = take_until(&mut self.waiting, until);
        let drawn = self.piece.len();
        self.assembler.take(&events, &mut self.piece);
        if until > self.origin {
            self.assembler.tick(until, &mut self.piece);
        }
        self.settled = until.max(self.origin);
        let recorded = (&mut self.assembler, &*self.cpus);
        self.offline.look(recorded, self.settled, || online_cpus().ok(), &mut self.piece);
        self.draw(drawn, self.settled);
        let now = Time::START + self.settled.since(self.origin);
        let is_quiet = self.piece.len() < self.names.len();
        if now.since(self.piece_from) >= if is_quiet { QUIET_PIECE } else { PIECE } {
            self.end_piece();
        }
        self.look_for_misses(now);
        let mut replies = self.save_ended(now);
        if self.predictions.is_due(now) {
            self.end_piece();
            if let Err(error) = self.predictions.settle(now, &self.header, &self.ring) {
                let text = format!("cannot save the outcome of a prediction: {error}");
                replies.push(FlightReply::Incident(Err(text)));
            }
        }
        replies
    }

    fn predict(
        &mut self,
        by: Principal,
        predictions: Vec<Prediction>,
        own: Option<&OwnVms>,
    ) -> Result<Answer, Problem> {
        let now = Time::START + self.settled.since(self.origin);
        let is_own = |it: &Prediction| may_see(own, &it.vcpu);
        if !predictions.iter().all(is_own) {
            let detail = "the prediction is about a VM of another user";
            return Err(Problem::new(Kind::NotAllowed, detail));
        }
        self.predictions.watch((now, wall_ns()), by, predictions)?;
        Ok(self.predicted(own))
    }

    fn predicted(&self, own: Option<&OwnVms>) -> Answer {
        let all = self.predictions.all();
        let all = all
            .filter(|it| own.is_none_or(|own| own.has_prediction(&it.prediction.vcpu, it.at_ns)));
        let all: Vec<_> = all.collect();
        let newest = &all[all.len().saturating_sub(MOST_LISTED)..];
        Answer::Predictions(newest.iter().copied().cloned().collect())
    }

    fn pictured(&self, from: u64, own: Option<&OwnVms>) -> Answer {
        let now = Time::START + self.settled.since(self.origin);
        Answer::Timeline(self.timeline.answer(from, now, |vcpu| may_see(own, vcpu)))
    }

    fn know(&mut self, threads: BTreeSet<SessionThread>) {
        follow(&mut self.assembler, (&self.threads, &threads), &self.names);
        let has_thread = |vcpu: &VcpuId| threads.iter().any(|it| it.vcpu == *vcpu);
        self.names.retain(|vcpu, _| self.joined.contains(vcpu) || has_thread(vcpu));
        self.threads = threads;
    }

    /// Draws the entries of the current piece, from index `from` on, into the timeline. A run
    /// interval that has not ended is drawn up to `until`.
    fn draw(&mut self, from: usize, until: Time) {
        let names = &self.names;
        let name = |vcpu: VcpuId| names.get(&vcpu).map(|(name, _)| name.clone());
        let mut sink = TimelineSink { keeper: &mut self.timeline, name: &name };
        self.piece[from..].iter().for_each(|entry| entry.pass_to(&mut sink));
        let now = Time::START + until.since(self.origin);
        for (cpu, thread, since) in self.assembler.occupants() {
            self.timeline.add((cpu, thread), (since, now));
        }
    }

    fn end_piece(&mut self) {
        let now = Time::START + self.settled.since(self.origin);
        // Without this record of run intervals that have not ended, a thread that has just got a
        // CPU would seem to wait for the CPU.
        self.assembler.split(self.settled, Span::ZERO, &mut self.piece);
        let live = self.assembler.live();
        let piece = std::mem::take(&mut self.piece);
        self.ring.push(&piece, (self.piece_from, now), |id| live.contains(&id));
        self.timeline.keep_threads(|id| live.contains(&id));
        self.piece_from = now;
    }

    fn look_for_misses(&mut self, now: Time) {
        if now.since(self.looked) < LOOK.max(self.look_took * RARELY) {
            return;
        }
        let began = monotonic();
        let from = Time::START + self.looked.since(Time::START + AROUND);
        self.looked = now;
        self.incidents.tidy(wall_ns());
        self.meter.take_gone(Time::START + now.since(Time::START + LATE));
        let Ok(summary) = self.meter.view() else { return };
        let mut missed: BTreeMap<String, u64> = BTreeMap::new();
        let mut sums = BTreeMap::new();
        for vcpu in &summary.vcpus {
            let misses = vcpu.misses.unwrap_or(0);
            let before = self.missed.get(&vcpu.id).copied().unwrap_or(0);
            sums.insert(vcpu.id, misses);
            if vcpu.id.domain() == NO_RESERVATION {
                continue;
            }
            if misses > before {
                self.timeline.missed(&vcpu.name, now, misses - before);
            }
            if let Some((_, domain)) = self.names.get(&vcpu.id).filter(|_| misses > before) {
                *missed.entry(domain.clone()).or_default() += misses - before;
            }
        }
        self.missed = sums;
        for (name, missed) in missed {
            if let Some(open) = self.open.iter_mut().find(|open| open.name == name) {
                open.missed += missed;
                continue;
            }
            let is_early = self.last.get(&name).is_some_and(|&last| now.since(last) < PAUSE);
            if !is_early && self.open.len() < MOST_OPEN {
                self.last.insert(name.clone(), now);
                self.open.push(OpenIncident { name, missed, from, until: now + AROUND });
            }
        }
        self.last.retain(|_, last| now.since(*last) < PAUSE);
        self.look_took = monotonic().since(began).min(LONGEST_LOOK);
    }

    fn save_ended(&mut self, now: Time) -> Vec<FlightReply> {
        let ended = |open: &mut OpenIncident| open.until <= now;
        let ended: Vec<OpenIncident> = self.open.extract_if(.., ended).collect();
        if ended.is_empty() {
            return Vec::new();
        }
        self.end_piece();
        let notes = notes(&self.cpus, WakeMark::Wakeup);
        let save = |OpenIncident { name, missed, from, .. }: OpenIncident| {
            let (ring, about) = (&self.ring, (&self.header, &*notes));
            let about_it = (wall_ns(), name.as_str(), missed);
            let write = |mut file: File| ring.write(about, from, &mut file);
            let saved = self.incidents.save(about_it, write);
            let saved = saved.cloned().map_err(|error| {
                format!("cannot save the recording of {missed} missed deadlines of {name}: {error}")
            });
            FlightReply::Incident(saved)
        };
        ended.into_iter().map(save).collect()
    }

    fn why(&self, name: &str, own: Option<&OwnVms>) -> Result<Answer, Problem> {
        let mut why = CulpritFinder::new(name);
        let now = Time::START + self.settled.since(self.origin);
        let from = own.and_then(|own| own.begun(name)).map_or(Time::START, |begun| {
            let age = Span::from_ns(wall_ns().saturating_sub(begun));
            Time::START + now.since(Time::START + age)
        });
        notes(&self.cpus, WakeMark::Wakeup).iter().for_each(|note| why.note(note));
        let damaged =
            |error| Problem::new(Kind::Bug, format!("cannot read recorded events: {error}"));
        self.ring.replay(from, &mut why).map_err(damaged)?;
        if let Some((_, at)) = self.ring.covers() {
            why.record(&Record::Ended { at });
        }
        let answer = why.answer();
        if answer.vcpus.is_empty() {
            let detail = format!("the flight recorder has no events of {name} in the last minute");
            let hint = "make sure that the VM runs, and ask again in a second";
            return Err(Problem::new(Kind::NotNow, detail).hinting(hint));
        }
        let names = own.map(OwnVms::names);
        Ok(Answer::Why(Box::new(culprits_for(name, answer, names.as_ref()))))
    }

    fn listed(&self, own: Option<&OwnVms>) -> Vec<Incident> {
        let all = self.incidents.newest_first();
        match own {
            None => all.cloned().collect(),
            Some(own) => {
                let own = all.filter(|it| own.has_incident(&it.name, it.at_ns));
                own.map(|incident| Incident { file: None, ..incident.clone() }).collect()
            }
        }
    }

    /// Returns a recording of the latest events in the ring for a prediction, over a time of length
    /// `since`. If `own` is given, the recording leaves out the names of all VMs that are not in
    /// `own`.
    fn window(&self, since: Span, own: Option<&BTreeSet<String>>) -> Result<Vec<u8>, Problem> {
        let now = Time::START + self.settled.since(self.origin);
        let from = Time::START + now.since(Time::START + since);
        let notes = notes(&self.cpus, WakeMark::Wakeup);
        let mut bytes = Vec::new();
        let written = self.ring.write_demand((&self.header, &notes), (from, own), &mut bytes);
        let bug = |error| Problem::new(Kind::Bug, format!("cannot copy recorded events: {error}"));
        written.map_err(bug)?;
        Ok(bytes)
    }

    fn record(&mut self, since: Span) -> Result<Answer, Problem> {
        let now = Time::START + self.settled.since(self.origin);
        let from = Time::START + now.since(Time::START + since);
        let notes = notes(&self.cpus, WakeMark::Wakeup);
        let (ring, about) = (&self.ring, (&self.header, &*notes));
        let write = |mut file: File| ring.write(about, from, &mut file);
        let saved = self.incidents.save_aside(wall_ns(), write);
        let file = saved.map_err(|error| {
            Problem::new(Kind::NotNow, format!("cannot save the recording: {error}"))
        })?;
        let start = self.ring.covers().map_or(now, |(start, _)| start.max(from));
        let (file, length_ns) = (file.display().to_string(), now.since(start).ns());
        Ok(Answer::Recording(Recording { file, length_ns }))
    }
}

fn wall_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
