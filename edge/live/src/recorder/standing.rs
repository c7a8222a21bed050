//! State of a run at one moment: the vCPUs, their reservations, and which of them are runnable.

use std::collections::BTreeMap;

use slackline_trace::{Exchange, Fact, KeptFact, Record, Sink, VcpuName, WrittenTerms};
use slackline_units::{Span, Time, VcpuId};

/// State of all vCPUs at the end of a part of a trace. A trace of the time after that part begins
/// with this state.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// All vCPUs, by slot.
    vcpus: BTreeMap<usize, StandingVcpu>,
    /// Parameters of vCPUs that have asked to join and have neither joined nor been refused yet.
    joining: BTreeMap<VcpuId, WrittenTerms>,
    /// vCPU whose parameters were changed last, with its parameters before the change if they are
    /// known. The policy may still decline the change. `None` if there is no such change.
    changing: Option<(VcpuId, Option<WrittenTerms>)>,
    /// Time by which the wall clock is ahead of the time of the run.
    ahead: Span,
}

/// State of one vCPU.
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

    /// Returns the approximate number of bytes of memory that this state takes.
    #[must_use]
    pub fn size(&self) -> usize {
        let vcpus = self.vcpus.values().map(|StandingVcpu { named, terms, .. }| {
            let terms = terms.as_ref().map_or(0, |terms| terms.share.len());
            size_of::<StandingVcpu>() + named.name.len() + named.domain.len() + terms
        });
        let joining = self.joining.values().map(|it| size_of::<WrittenTerms>() + it.share.len());
        vcpus.chain(joining).sum()
    }

    /// Writes this state as the start of a trace that begins at `at`. In the trace each vCPU joins
    /// at the start of its current period. So its later periods start at the same times as in the
    /// run.
    pub fn tell(&self, at: Time, sink: &mut dyn Sink) {
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
            if let Some(Record::Promised { reservation, exact, phase, by, .. }) = *promised {
                sink.record(&Record::Promised { at, vcpu, reservation, exact, phase, by });
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
    /// Returns the start of the vCPU's current period. Returns `now` itself if the vCPU has no
    /// periods, or if its periods have a phase, that is, are aligned to the host's clock.
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

#[cfg(test)]
mod tests {
    use slackline_trace::Entry;
    use slackline_units::{CpuId, CpuSet, DomId, Enforcement, Reservation};

    use super::*;

    const WEB: VcpuId = VcpuId::new(0, DomId::new(0), 0);

    fn at(ms: u64) -> Time {
        Time::START + Span::from_ms(ms)
    }

    fn terms(slice: &str, cpus: Option<CpuSet>) -> Box<WrittenTerms> {
        Box::new(WrittenTerms { share: format!("slice={slice} period=10ms"), cpus })
    }

    fn reported(fact: KeptFact) -> Entry {
        Entry::Exchange(Exchange::Reported { now: at(3), fact })
    }

    #[test]
    fn trace_started_mid_run_begins_with_vcpu_parameters_and_periods() {
        let mut standing = Standing::default();
        let (name, domain) = ("web.0".to_owned(), "web".to_owned());
        standing.named(&VcpuName { at: at(3), vcpu: WEB, name, domain });
        let first = CpuSet::one(CpuId::new(1));
        let reservation = Reservation::new(Span::from_ms(2), Span::from_ms(10)).ok();
        let (exact, phase, by) = (false, None, Enforcement::Deadline);
        let entries = [
            reported(Fact::Joined(WEB, terms("2ms", Some(first)))),
            Entry::Record(Record::Joined { at: at(3), vcpu: WEB }),
            Entry::Record(Record::Promised { at: at(3), vcpu: WEB, reservation, exact, phase, by }),
            reported(Fact::TermsChanged(WEB, terms("9ms", None))),
            Entry::Exchange(Exchange::Declined),
            reported(Fact::Woke(WEB)),
            Entry::Record(Record::Woke { at: at(4), vcpu: WEB }),
        ];
        entries.iter().for_each(|entry| entry.pass_to(&mut standing));
        let mut told: Vec<Entry> = Vec::new();
        standing.tell(at(1_057), &mut told);
        let joined = Fact::Joined(WEB, terms("2ms", Some(first)));
        let joined = Exchange::Reported { now: at(1_053), fact: joined };
        let message = "the vCPU joins with the parameters before the declined change";
        assert!(told.contains(&Entry::Exchange(joined)), "{message}: {told:#?}");
        let is_there = |record: Record| told.contains(&Entry::Record(record));
        assert!(is_there(Record::Joined { at: at(1_053), vcpu: WEB }));
        assert!(is_there(Record::Woke { at: at(1_057), vcpu: WEB }));
        let times = told.iter().filter_map(|entry| match entry {
            Entry::Record(record) => Some(record.when().0),
            _ => None,
        });
        assert!(times.is_sorted(), "{told:#?}");
    }
}
