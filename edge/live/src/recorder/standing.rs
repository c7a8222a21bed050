//! State of a run at one moment: the vCPUs, their reservations, and whether each is runnable.

use std::collections::BTreeMap;

use slackline_trace::{Record, Sink, VcpuName};
use slackline_units::{Span, Time, VcpuId};

/// State of all vCPUs after the entries that were passed to it. A trace of the time after that
/// begins with this state.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// All vCPUs, by slot.
    vcpus: BTreeMap<usize, StandingVcpu>,
    ahead: Span,
}

#[derive(Clone, Debug)]
struct StandingVcpu {
    named: VcpuName,
    has_joined: bool,
    promised: Option<Record>,
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

    /// Writes this state as the first entries of a trace that begins at `at`.
    pub fn tell(&self, at: Time, sink: &mut impl Sink) {
        sink.record(&Record::ClockSet { at, ahead: self.ahead });
        for StandingVcpu { named, has_joined, promised, state } in self.vcpus.values() {
            let vcpu = named.vcpu;
            sink.named(&VcpuName { at, ..named.clone() });
            if !has_joined {
                continue;
            }
            sink.record(&Record::Joined { at, vcpu });
            if let Some(Record::Promised { reservation, exact, phase, .. }) = *promised {
                sink.record(&Record::Promised { at, vcpu, reservation, exact, phase });
            }
            match state {
                WakeState::Blocked => {}
                WakeState::Awake => sink.record(&Record::Woke { at, vcpu }),
                WakeState::Paused => {
                    sink.record(&Record::Woke { at, vcpu });
                    sink.record(&Record::Paused { at, vcpu });
                }
            }
        }
    }

    fn change(&mut self, vcpu: VcpuId, change: impl FnOnce(&mut StandingVcpu)) {
        if let Some(row) = self.vcpus.get_mut(&vcpu.slot()).filter(|row| row.named.vcpu == vcpu) {
            change(row);
        }
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
        let vcpu = StandingVcpu { named: named.clone(), has_joined: false, promised, state };
        self.vcpus.insert(named.vcpu.slot(), vcpu);
    }

    fn record(&mut self, record: &Record) {
        match *record {
            Record::Joined { vcpu, .. } => self.change(vcpu, |it| it.has_joined = true),
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
}
