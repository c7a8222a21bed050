//! Predictions that [worker](crate::worker) processes compute from the last seconds of the flight
//! recorder.
//!
//! A principal has one worker at a time. After an answer, the worker keeps its recording for a few
//! seconds. So further questions about the same seconds need no new recording, and no new check of
//! the recording. If a worker fails, it is killed, and nothing else is affected.

mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use slackline_control::{Kind, LargestShare, Problem, WhatIf, WhatIfAnswer};
use slackline_service::{Principal, Role, Ticket};
use slackline_units::Span;

use super::front_process::FrontCommand as WorkerCommand;
use crate::worker::{PredictionFields, WorkerQuestion, frame};
use process::{Worker, WorkerFailure};

/// Time limit for the answer to a what-if question.
const WITHIN: Duration = Duration::from_secs(10);

/// Maximum number of predictions that are computed at the same time.
const MOST_AT_ONCE: usize = 10;

/// Part of [`MOST_AT_ONCE`] that is kept free for administrators.
const KEPT_AT_ONCE: usize = 2;

/// Maximum number of idle workers that keep a recording for further questions.
const MOST_IDLE: usize = 10;

/// Time for which a worker keeps its recording for further questions. It starts when the recording
/// is taken.
const KEPT: Duration = Duration::from_secs(10);

/// Time for which the daemon waits for its workers to end, when the daemon itself ends.
const ENDING: Duration = Duration::from_millis(300);

/// Names of the VMs that the caller may see. `None` if the caller may see all VMs.
type Own = Option<BTreeSet<String>>;

/// Running workers, and idle workers that keep a recording.
pub(super) struct Whatifs {
    command: WorkerCommand,
    running: BTreeMap<Principal, RunningPrediction>,
    kept: BTreeMap<Principal, KeptWindow>,
    sender: Sender<EndedPrediction>,
    ended: Receiver<EndedPrediction>,
    /// Eventfd that is written when a prediction has ended.
    told: Arc<OwnedFd>,
}

struct RunningPrediction {
    ticket: Ticket,
    is_cancelled: Arc<AtomicBool>,
}

/// A worker and the recording that it has loaded.
struct KeptWindow {
    worker: Worker,
    about: Window,
}

/// Properties of a recording that decide if a later question can be answered from it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Window {
    since: Span,
    own: Own,
    /// Revision of the reservations when the recording was taken.
    revision: u64,
    taken: Instant,
}

/// Order to the flight recorder to copy its latest events for a prediction.
pub(super) struct RecordingOrder {
    since: Span,
    own: Own,
    is_cancelled: Arc<AtomicBool>,
    sender: Sender<Result<Vec<u8>, Problem>>,
}

/// Prediction that is being made: a principal's question, with all that is needed to answer it.
struct PredictionTask {
    command: WorkerCommand,
    principal: Principal,
    ticket: Ticket,
    question: WorkerQuestion,
    largest: Vec<LargestShare>,
    window: Window,
    is_cancelled: Arc<AtomicBool>,
    until: Instant,
    sender: Sender<EndedPrediction>,
    told: Arc<OwnedFd>,
}

/// A prediction that has ended, with its answer. `window` is `None` if the worker failed.
struct EndedPrediction {
    principal: Principal,
    ticket: Ticket,
    answer: Result<WhatIfAnswer, Problem>,
    window: Option<KeptWindow>,
}

impl Whatifs {
    /// Creates an empty set of workers. `command` is the command that starts a worker.
    pub(super) fn new(command: WorkerCommand) -> io::Result<Whatifs> {
        let told = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (sender, ended) = channel();
        let (running, kept) = (BTreeMap::new(), BTreeMap::new());
        Ok(Whatifs { command, running, kept, sender, ended, told: Arc::new(told) })
    }

    /// Begins a prediction. If a worker still has a suitable recording, this worker gets the
    /// question immediately, and `None` is returned. Otherwise starts a new worker, and returns an
    /// order for its recording. So the worker starts while the flight recorder makes the recording.
    ///
    /// # Errors
    /// If a prediction for the principal is running, or if too many predictions are running.
    pub(super) fn begin(
        &mut self,
        (principal, role, ticket): (Principal, Role, Ticket),
        (asked, own): (WhatIf, Own),
        (revision, largest): (u64, Vec<LargestShare>),
    ) -> Result<Option<RecordingOrder>, Problem> {
        if self.running.contains_key(&principal) {
            let detail =
                "cannot predict: a prediction for this user is running already, and 1 is the limit";
            return Err(
                Problem::new(Kind::TooMany, detail).hinting("wait for the running prediction")
            );
        }
        let kept = if role == Role::Administrator { 0 } else { KEPT_AT_ONCE };
        if self.running.len() >= MOST_AT_ONCE - kept {
            let detail = format!(
                "cannot predict: {} predictions are running already, the maximum",
                MOST_AT_ONCE - kept
            );
            return Err(Problem::new(Kind::NotNow, detail).hinting("ask again in a second"));
        }
        let now = Instant::now();
        let window = Window { since: asked.since.0, own, revision, taken: now };
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let names = window.own.as_ref().map(|own| own.iter().cloned().collect());
        let task = PredictionTask {
            command: self.command.clone(),
            principal,
            ticket,
            question: WorkerQuestion { asked, own: names },
            largest,
            window,
            is_cancelled: Arc::clone(&is_cancelled),
            until: now + WITHIN,
            sender: self.sender.clone(),
            told: Arc::clone(&self.told),
        };
        let is_fresh = task.question.asked.fresh;
        let kept = self.kept.remove(&principal).filter(|_| !is_fresh);
        let running = RunningPrediction { ticket, is_cancelled: Arc::clone(&is_cancelled) };
        self.running.insert(principal, running);
        if let Some(kept) = kept.filter(|kept| kept.about.is_still(&task.window)) {
            task.start(WindowSource::Kept(kept));
            return Ok(None);
        }
        let Window { since, ref own, .. } = task.window;
        let (sender, recording) = channel();
        let order = RecordingOrder { since, own: own.clone(), is_cancelled, sender };
        task.start(WindowSource::Ordered(recording));
        Ok(Some(order))
    }

    /// Cancels a prediction whose caller has disconnected.
    pub(super) fn cancel(&mut self, ticket: Ticket) {
        let running = self.running.values().filter(|running| running.ticket == ticket);
        running.for_each(|running| running.is_cancelled.store(true, Ordering::Relaxed));
    }

    /// Returns the answers of the predictions that have ended since the last call. Ends the workers
    /// whose recording is too old.
    pub(super) fn ended(&mut self) -> Vec<(Ticket, Result<WhatIfAnswer, Problem>)> {
        let _ = rustix::io::read(&self.told, &mut [0; 8]);
        let mut answers = Vec::new();
        while let Ok(EndedPrediction { principal, ticket, answer, window }) = self.ended.try_recv()
        {
            self.running.remove(&principal);
            if let Some(window) = window {
                self.kept.insert(principal, window);
            }
            answers.push((ticket, answer));
        }
        self.kept.retain(|_, kept| kept.about.taken.elapsed() < KEPT);
        while self.kept.len() > MOST_IDLE {
            let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.about.taken);
            let Some((&oldest, _)) = oldest else { break };
            self.kept.remove(&oldest);
        }
        answers
    }
}

impl AsFd for Whatifs {
    /// Returns a descriptor that is readable when a prediction has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.told.as_fd()
    }
}

impl Drop for Whatifs {
    /// Cancels all predictions, and waits at most [`ENDING`] until their workers have ended.
    fn drop(&mut self) {
        for running in self.running.values() {
            running.is_cancelled.store(true, Ordering::Relaxed);
        }
        let until = Instant::now() + ENDING;
        while !self.running.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(ended) = self.ended.recv_timeout(left) else { return };
            self.running.remove(&ended.principal);
        }
    }
}

impl Window {
    /// Returns true if this recording is still fresh, and has the length, VMs and revision that the
    /// question needs.
    fn is_still(&self, wanted: &Window) -> bool {
        let Window { since, own, revision, taken } = self;
        let is_fresh = taken.elapsed() < KEPT;
        is_fresh && (since, own, revision) == (&wanted.since, &wanted.own, &wanted.revision)
    }
}

/// Source of the recording from which a question is answered.
enum WindowSource {
    Kept(KeptWindow),
    /// Recording that the flight recorder makes, for a new worker.
    Ordered(Receiver<Result<Vec<u8>, Problem>>),
}

impl RecordingOrder {
    /// Returns two properties of the needed recording: its length, and the VMs whose names it may
    /// contain.
    pub(super) fn needs(&self) -> (Span, &Own) {
        (self.since, &self.own)
    }

    /// Returns true if the caller of the question has disconnected.
    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// Passes the recording to the worker. If there is no recording, ends the prediction with the
    /// reason.
    pub(super) fn take(self, recording: Result<Vec<u8>, Problem>) {
        // The prediction has ended already if its worker could not be started.
        let _ = self.sender.send(recording);
    }
}

impl PredictionTask {
    fn start(self, source: WindowSource) {
        let (sender, told) = (self.sender.clone(), Arc::clone(&self.told));
        let (principal, ticket) = (self.principal, self.ticket);
        let body = move || self.run(source);
        if let Err(error) = Builder::new().name("slackline-whatif".into()).spawn(body) {
            let answer = Err(WorkerFailure::Io(error).problem(WITHIN));
            let _ = sender.send(EndedPrediction { principal, ticket, answer, window: None });
            let _ = rustix::io::write(&told, &1_u64.to_ne_bytes());
        }
    }

    fn run(self, source: WindowSource) {
        match self.ask(source) {
            Ok((answer, kept)) => {
                let age_ns = u64::try_from(kept.about.taken.elapsed().as_nanos());
                let answer = answer.map(|prediction| WhatIfAnswer {
                    prediction,
                    revision: kept.about.revision,
                    age_ns: age_ns.unwrap_or(u64::MAX),
                    largest: self.largest.clone(),
                });
                self.end(answer, Some(kept));
            }
            Err(failure) => self.end(Err(failure.problem(WITHIN)), None),
        }
    }

    fn ask(
        &self,
        source: WindowSource,
    ) -> Result<(Result<PredictionFields, Problem>, KeptWindow), WorkerFailure> {
        let question = serde_json::to_vec(&self.question).map_err(io::Error::other)?;
        let mut message = Vec::new();
        let mut kept = match source {
            WindowSource::Kept(kept) => kept,
            WindowSource::Ordered(recording) => {
                let worker = Worker::start(&self.command)?;
                let stopped = || Problem::new(Kind::NotNow, "the flight recorder has stopped");
                let recording = recording.recv().unwrap_or_else(|_| Err(stopped()));
                message = frame(&recording.map_err(WorkerFailure::NoRecording)?);
                KeptWindow { worker, about: self.window.clone() }
            }
        };
        message.extend(frame(&question));
        let answer = kept.worker.ask(&message, self.until, &self.is_cancelled)?;
        let answer = serde_json::from_slice(&answer).map_err(io::Error::other)?;
        Ok((answer, kept))
    }

    fn end(self, answer: Result<WhatIfAnswer, Problem>, window: Option<KeptWindow>) {
        let (principal, ticket) = (self.principal, self.ticket);
        let _ = self.sender.send(EndedPrediction { principal, ticket, answer, window });
        let _ = rustix::io::write(&self.told, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_prediction_slots_are_reserved_for_administrators() {
        let command = WorkerCommand { program: "/bin/false".into(), arguments: Vec::new() };
        let mut whatifs = Whatifs::new(command).unwrap();
        let mut begin = |user, role| {
            let asker = (Principal::User(user), role, Ticket(u64::from(user)));
            whatifs.begin(asker, (WhatIf::default(), None), (1, Vec::new()))
        };
        for user in 1..=8 {
            assert!(begin(user, Role::Viewer).is_ok());
        }
        let refused = begin(9, Role::Operator).err().expect("the ninth");
        assert!(refused.detail.starts_with("cannot predict: 8 predictions"), "{refused:?}");
        assert!(begin(10, Role::Administrator).is_ok() && begin(0, Role::Administrator).is_ok());
        let refused = begin(11, Role::Administrator).err().expect("the eleventh");
        assert_eq!(refused.kind, Kind::NotNow);
    }
}
