//! State of a run at one moment: the vCPUs, their reservations, and whether each is runnable.

use std::collections::BTreeMap;

use slackline_trace::{Exchange, Fact, KeptFact, Record, Sink, VcpuName, WrittenTerms};
use slackline_units::{Span, Time, VcpuId};

/// State of all vCPUs after the entries that were passed to it. A trace of the time after that
/// begins with this state.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// All vCPUs, by slot.
    vcpus: BTreeMap<usize, StandingVcpu>,
    /// Parameters of vCPUs that are about to join.
    joining: BTreeMap<VcpuId, WrittenTerms>,
    /// Parameters before the last change, while the policy can still decline it.
    changing: Option<(VcpuId, Option<WrittenTerms>)>,
    ahead: Span,
}

#[derive(Clone, Debug)]
struct StandingVcpu {
    named: VcpuName,
    has_joined: bool,
    promised: Option<Record>,
    terms: Option<WrittenTerms>,
    state: WakeState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WakeState {
    Blocked,
    Awake,
    Paused,
}

impl Standing {
    /// Returns the names of all vCPUs.
    pub fn names(&self) -> impl Iterator<Item = &VcpuName> {
        self.vcpus.values().map(|vcpu| &vcpu.named)
    }

    /// Returns the name of a vCPU. `None` if the vCPU is not present.
    #[must_use]
    pub fn name(&self, vcpu: VcpuId) -> Option<&VcpuName> {
        let named = &self.vcpus.get(&vcpu.slot())?.named;
        (named.vcpu == vcpu).then_some(named)
    }

    /// Records this state as that of a trace which begins at `at`. Each vCPU joins at the begin of
    /// its period, so that the periods are where they were.
    pub fn tell(&self, at: Time, sink: &mut impl Sink) {
        let mut joined: Vec<(Time, &StandingVcpu)> =
            self.vcpus.values().map(|vcpu| (vcpu.period_at(at), vcpu)).collect();
        joined.sort_by_key(|(at, vcpu)| (*at, vcpu.named.vcpu.slot()));
        let first = joined.first().map_or(at, |(first, _)| *first);
        sink.record(&Record::ClockSet { at: first, ahead: self.ahead });
        for &(at, StandingVcpu { named, has_joined, promised, terms, .. }) in &joined {
            let vcpu = named.vcpu;
            sink.named(&VcpuName { at, ..named.clone() });
            if !has_joined {
                continue;
            }
            if let Some(terms) = terms {
                let fact = Fact::Joined(vcpu, Box::new(terms.clone()));
                sink.exchange(&Exchange::Reported { now: at, fact });
            }
            sink.record(&Record::Joined { at, vcpu });
            if let Some(Record::Promised { reservation, exact, phase, .. }) = *promised {
                sink.record(&Record::Promised { at, vcpu, reservation, exact, phase });
            }
        }
        for StandingVcpu { named, has_joined, state, .. } in self.vcpus.values() {
            let vcpu = named.vcpu;
            if !has_joined || *state == WakeState::Blocked {
                continue;
            }
            sink.record(&Record::Woke { at, vcpu });
            if *state == WakeState::Paused {
                sink.record(&Record::Paused { at, vcpu });
            }
        }
    }

    fn reported(&mut self, fact: &KeptFact) {
        self.changing = None;
        match fact {
            Fact::Joined(vcpu, terms) => {
                self.joining.insert(*vcpu, (**terms).clone());
            }
            Fact::TermsChanged(vcpu, terms) => {
                let is_it = |it: &&mut StandingVcpu| it.named.vcpu == *vcpu;
                let Some(row) = self.vcpus.get_mut(&vcpu.slot()).filter(is_it) else { return };
                let before = row.terms.take();
                let mut terms = (**terms).clone();
                terms.cpus = terms.cpus.or(before.as_ref().and_then(|before| before.cpus));
                row.terms = Some(terms);
                self.changing = Some((*vcpu, before));
            }
            _ => {}
        }
    }

    fn change(&mut self, vcpu: VcpuId, change: impl FnOnce(&mut StandingVcpu)) {
        if let Some(row) = self.vcpus.get_mut(&vcpu.slot()).filter(|row| row.named.vcpu == vcpu) {
            change(row);
        }
    }
}

impl StandingVcpu {
    /// Returns the begin of its period at a time. The time itself if its periods lie on a grid of
    /// the clock or it has none.
    fn period_at(&self, now: Time) -> Time {
        let Some(Record::Promised { at, reservation: Some(reservation), phase: None, .. }) =
            self.promised
        else {
            return now;
        };
        let passed = now.since(at);
        Time::from_ns(now.ns() - (passed % reservation.period()).ns()).max(at).min(now)
    }
}

impl Sink for Standing {
    fn named(&mut self, named: &VcpuName) {
        let known = self.vcpus.get_mut(&named.vcpu.slot());
        if let Some(known) = known.filter(|known| known.named.vcpu == named.vcpu) {
            known.named = named.clone();
            return;
        }
        let (promised, state) = (None, WakeState::Blocked);
        let named = named.clone();
        let vcpu = StandingVcpu { named, has_joined: false, promised, terms: None, state };
        self.vcpus.insert(vcpu.named.vcpu.slot(), vcpu);
    }

    fn record(&mut self, record: &Record) {
        match *record {
            Record::Joined { vcpu, .. } => {
                let terms = self.joining.remove(&vcpu);
                self.change(vcpu, |it| (it.has_joined, it.terms) = (true, terms));
            }
            Record::Promised { vcpu, .. } => {
                self.change(vcpu, |it| it.promised = Some(*record));
            }
            Record::Woke { vcpu, .. } => self.change(vcpu, |it| it.state = WakeState::Awake),
            Record::Blocked { vcpu, .. } => self.change(vcpu, |it| it.state = WakeState::Blocked),
            Record::Paused { vcpu, .. } => self.change(vcpu, |it| it.state = WakeState::Paused),
            Record::Left { vcpu, .. } => {
                let is_it = |row: &&mut StandingVcpu| row.named.vcpu == vcpu;
                if self.vcpus.get_mut(&vcpu.slot()).filter(is_it).is_some() {
                    self.vcpus.remove(&vcpu.slot());
                }
            }
            Record::ClockSet { ahead, .. } => self.ahead = ahead,
            _ => {}
        }
    }

    fn wants_exchanges(&self) -> bool {
        true
    }

    fn exchange(&mut self, exchange: &Exchange) {
        match exchange {
            Exchange::Reported { fact, .. } => self.reported(fact),
            Exchange::Declined => {
                if let Some((vcpu, terms)) = self.changing.take() {
                    self.change(vcpu, |it| it.terms = terms);
                }
            }
            _ => {}
        }
    }
}
