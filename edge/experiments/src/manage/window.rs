//! Recordings of the last rounds of a simulated run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use slackline_demand::{Collector, Demand};
use slackline_trace::{
    Entry, Exchange, Fact, Header, Order, Outcome, RanEnd, Record, Sink, VcpuName, WrittenTerms,
};
use slackline_units::{CpuId, Span, Time, VcpuId};
use slackline_whatif::{Recorder, Recording};

/// Sink that keeps the entries of the last rounds.
#[derive(Debug)]
pub(super) struct Window {
    header: Header,
    /// Maximum number of rounds that the window keeps.
    most: usize,
    names: BTreeMap<VcpuId, VcpuName>,
    state: State,
    /// vCPU whose parameters were changed last, and its parameters before that change. Kept while
    /// the policy can still decline the change.
    before: Option<(VcpuId, Option<WrittenTerms>)>,
    rounds: VecDeque<KeptRound>,
    /// vCPU that occupies each CPU, with the time from which its run interval is not recorded yet.
    running: BTreeMap<CpuId, (VcpuId, Time)>,
    /// Time of the last event.
    now: Time,
}

/// State of all vCPUs at one point in time.
#[derive(Clone, Debug, Default)]
struct State {
    terms: BTreeMap<VcpuId, WrittenTerms>,
    promised: BTreeMap<VcpuId, Record>,
    members: BTreeSet<VcpuId>,
    runnable: BTreeSet<VcpuId>,
}

#[derive(Debug)]
struct KeptRound {
    begin: Time,
    state: State,
    entries: Vec<Entry>,
}

impl Window {
    /// Creates a window of at most `most` rounds.
    pub(super) fn new(header: Header, most: usize) -> Window {
        let first = KeptRound { begin: Time::START, state: State::default(), entries: Vec::new() };
        Window {
            header,
            most,
            names: BTreeMap::new(),
            state: State::default(),
            before: None,
            rounds: VecDeque::from([first]),
            running: BTreeMap::new(),
            now: Time::START,
        }
    }

    /// Ends the current round and starts the next one.
    pub(super) fn next_round(&mut self, begin: Time) {
        let state = self.state.clone();
        self.rounds.push_back(KeptRound { begin, state, entries: Vec::new() });
        while self.rounds.len() > self.most {
            self.rounds.pop_front();
        }
    }

    /// Returns the start and the demand of the current round, which ends at `end`.
    pub(super) fn last_round(&self, end: Time) -> (Time, Demand) {
        let mut collector = Collector::new(Time::START);
        let begin = self.pass_on(self.rounds.len() - 1, end, &mut collector);
        (begin, collector.finish())
    }

    /// Returns a recording of all kept rounds up to `end`. `None` if the recording lacks a vCPU,
    /// which is a bug.
    pub(super) fn recording(&self, end: Time) -> Option<Recording> {
        let begin = self.rounds.front()?.begin;
        let header = Header { warmup: Span::ZERO, ..self.header.clone() };
        let mut recorder = Recorder::new(&header, (begin, end));
        self.pass_on(0, end, &mut recorder);
        recorder.finish().ok()
    }

    /// Passes all rounds to a sink, beginning with the round at index `first`. The state at the
    /// start of that round is passed before the rounds. Returns the start of that round.
    fn pass_on(&self, first: usize, end: Time, sink: &mut dyn Sink) -> Time {
        let Some(round) = self.rounds.get(first) else { return end };
        let (at, state) = (round.begin, &round.state);
        for &vcpu in &state.members {
            if let Some(name) = self.names.get(&vcpu) {
                sink.named(&VcpuName { at, ..name.clone() });
            }
            if let Some(terms) = state.terms.get(&vcpu) {
                let fact = Fact::Joined(vcpu, Box::new(terms.clone()));
                sink.exchange(&Exchange::Reported { now: at, fact });
            }
            sink.record(&Record::Joined { at, vcpu });
            if let Some(&Record::Promised { reservation, exact, phase, by, .. }) =
                state.promised.get(&vcpu)
            {
                sink.record(&Record::Promised { at, vcpu, reservation, exact, phase, by });
            }
            if state.runnable.contains(&vcpu) {
                sink.record(&Record::Woke { at, vcpu });
            }
        }
        let entries = self.rounds.iter().skip(first).flat_map(|round| &round.entries);
        entries.for_each(|entry| clipped(entry, at).pass_to(sink));
        for (&cpu, &(vcpu, since)) in &self.running {
            let from = since.max(at);
            let used = end.since(from);
            let (granted, late, due) = (None, Span::ZERO, true);
            let run = Record::Ran {
                vcpu,
                cpu,
                from,
                to: end,
                used,
                granted,
                late,
                end: RanEnd::Preempted,
                due,
            };
            sink.record(&run);
        }
        sink.record(&Record::Ended { at: end });
        at
    }

    fn keep(&mut self, entry: Entry) {
        if let Some(round) = self.rounds.back_mut() {
            round.entries.push(entry);
        }
    }
}

/// Cuts off the part of an entry before the start of a recording.
fn clipped(entry: &Entry, begin: Time) -> Entry {
    match *entry {
        Entry::Record(Record::Ran { vcpu, cpu, from, to, used, granted, late, end, due })
            if from < begin =>
        {
            let used = used.min(to.since(begin));
            let from = begin;
            Entry::Record(Record::Ran { vcpu, cpu, from, to, used, granted, late, end, due })
        }
        Entry::Record(Record::Spent { cpu, vcpu, kind, from, to }) if from < begin => {
            let from = begin.min(to);
            Entry::Record(Record::Spent { cpu, vcpu, kind, from, to })
        }
        _ => entry.clone(),
    }
}

impl Sink for Window {
    fn record(&mut self, record: &Record) {
        let state = &mut self.state;
        match *record {
            Record::Joined { vcpu, .. } => drop(state.members.insert(vcpu)),
            Record::Promised { vcpu, .. } => drop(state.promised.insert(vcpu, *record)),
            Record::Ran { cpu, .. } => drop(self.running.remove(&cpu)),
            Record::Woke { vcpu, .. } => drop(state.runnable.insert(vcpu)),
            Record::Blocked { vcpu, .. } => drop(state.runnable.remove(&vcpu)),
            Record::Left { vcpu, .. } => {
                state.members.remove(&vcpu);
                state.runnable.remove(&vcpu);
            }
            _ => {}
        }
        self.keep(Entry::Record(*record));
    }

    fn named(&mut self, named: &VcpuName) {
        self.names.insert(named.vcpu, named.clone());
        self.keep(Entry::Named(named.clone()));
    }

    fn wants_exchanges(&self) -> bool {
        true
    }

    fn exchange(&mut self, exchange: &Exchange) {
        match exchange {
            Exchange::Ordered { order: Order::Run { cpu, vcpu, .. }, outcome: Outcome::Done } => {
                let since = (*vcpu, self.now);
                let running = self.running.entry(*cpu).or_insert(since);
                *running = if running.0 == *vcpu { *running } else { since };
                return;
            }
            Exchange::Ordered { order: Order::Idle { cpu }, .. } => {
                self.running.remove(cpu);
                return;
            }
            Exchange::Reported { now, fact } => match fact {
                Fact::Joined(vcpu, terms) | Fact::TermsChanged(vcpu, terms) => {
                    let before = self.state.terms.insert(*vcpu, (**terms).clone());
                    self.before = Some((*vcpu, before));
                }
                _ => {
                    (self.now, self.before) = (*now, None);
                    return;
                }
            },
            Exchange::Declined => {
                if let Some((vcpu, Some(terms))) = self.before.take() {
                    self.state.terms.insert(vcpu, terms);
                }
            }
            _ => return,
        }
        self.keep(Entry::Exchange(exchange.clone()));
    }
}
