//! Wrapper around a policy that forwards every call and records its result in the books.

use std::collections::BTreeMap;

use slackline_policy::{Account, AdmitError, Moment, Pick, Policy, Told, TurnEnd, Values};
use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

use crate::books::{Breach, Shared};

/// Extra stress on a policy in a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Treatment {
    /// Number of times that each `pick` is repeated.
    pub(crate) again: usize,
    /// Numbers of the requests that are rejected without asking the policy.
    pub(crate) withheld: BTreeMap<usize, AdmitError>,
}

/// Policy whose calls are recorded.
pub(crate) struct Watched {
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) books: Shared,
    pub(crate) treatment: Treatment,
}

impl Watched {
    /// Passes a share to the policy, unless this request is withheld.
    fn request<T>(
        &mut self,
        put: impl FnOnce(&mut dyn Policy) -> Result<T, AdmitError>,
    ) -> Result<T, AdmitError> {
        let request = self.books.open().requests;
        let answer = match self.treatment.withheld.get(&request) {
            Some(error) => Err(*error),
            None => put(self.policy.as_mut()),
        };
        let mut books = self.books.open();
        books.requests += 1;
        if let Err(error) = &answer {
            books.declined.insert(request, *error);
        }
        answer
    }
}

impl Policy for Watched {
    fn admit(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<(), AdmitError> {
        self.request(|policy| policy.admit(at, vcpu, share))
    }

    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<CpuSet, AdmitError> {
        let cpus = self.request(|policy| policy.adjust(at, vcpu, share))?;
        Ok(self.books.open().check_cpus(cpus))
    }

    fn leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let cpus = self.policy.leave(at, vcpu);
        self.books.open().check_cpus(cpus)
    }

    fn wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let cpus = self.policy.wake(at, vcpu);
        self.books.open().check_cpus(cpus)
    }

    fn start(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let cpus = self.policy.start(at, vcpu);
        self.books.open().check_cpus(cpus)
    }

    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet {
        self.books.open().row(vcpu).charged += ran;
        let cpus = self.policy.charge(at, vcpu, ran);
        self.books.open().check_cpus(cpus)
    }

    fn turn_over(&mut self, at: &Moment, vcpu: VcpuId, why: TurnEnd) -> CpuSet {
        let cpus = self.policy.turn_over(at, vcpu, why);
        self.books.open().check_cpus(cpus)
    }

    fn block(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let cpus = self.policy.block(at, vcpu);
        self.books.open().check_cpus(cpus)
    }

    fn pass(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        let cpus = self.policy.pass(at, cpu);
        self.books.open().check_cpus(cpus)
    }

    fn pick(&self, at: &Moment, cpu: CpuId) -> Pick {
        let pick = self.policy.pick(at, cpu);
        let mut books = self.books.open();
        for _ in 0..self.treatment.again {
            if self.policy.pick(at, cpu) != pick {
                books.note(Breach::ChangedItsMind(cpu, at.now()));
            }
        }
        books.check_pick(pick, cpu);
        pick
    }

    fn alarm(&self, cpu: CpuId) -> Option<Time> {
        let alarm = self.policy.alarm(cpu);
        self.books.open().check_alarm(cpu, alarm);
        alarm
    }

    fn ring(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        let cpus = self.policy.ring(at, cpu);
        self.books.open().check_cpus(cpus)
    }

    fn ring_needs(&self, at: &Moment, cpu: CpuId) -> CpuSet {
        let cpus = self.policy.ring_needs(at, cpu);
        self.books.open().check_cpus(cpus)
    }

    fn hear(&mut self, at: &Moment, vcpu: VcpuId, told: &Told) -> CpuSet {
        let cpus = self.policy.hear(at, vcpu, told);
        let mut books = self.books.open();
        books.heard.push((vcpu, *told));
        books.check_cpus(cpus)
    }

    fn set_clock(&mut self, at: &Moment, ahead: Span) {
        self.policy.set_clock(at, ahead);
    }

    fn account(&self, vcpu: VcpuId) -> Account {
        self.policy.account(vcpu)
    }
}
