//! Wrapper around a policy that forwards every call and checks and records its result.

use std::collections::BTreeMap;

use slackline_policy::{Account, AdmitError, Moment, Pick, Policy, TimesliceEnd, Values, VcpuHint};
use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

use crate::books::{Breach, Shared};

/// Extra stress on a policy in a run. The stress must not change the policy's decisions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Treatment {
    /// Number of times that each `pick` is repeated.
    pub(crate) again: usize,
    /// Admission requests that fail without a call of the policy, each with its error. Requests are
    /// numbered from zero in their order.
    pub(crate) withheld: BTreeMap<usize, AdmitError>,
}

/// Policy whose calls are checked and recorded.
pub(crate) struct Watched {
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) books: Shared,
    pub(crate) treatment: Treatment,
}

impl Watched {
    /// Passes an admission request to the policy, unless `withheld` has an error for it.
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

    fn on_join(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let cpus = self.policy.on_join(at, vcpu);
        self.books.open().check_cpus(cpus)
    }

    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<CpuSet, AdmitError> {
        let cpus = self.request(|policy| policy.adjust(at, vcpu, share))?;
        Ok(self.books.open().check_cpus(cpus))
    }

    fn on_leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let cpus = self.policy.on_leave(at, vcpu);
        self.books.open().check_cpus(cpus)
    }

    fn on_wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let cpus = self.policy.on_wake(at, vcpu);
        self.books.open().check_cpus(cpus)
    }

    fn on_start(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let cpus = self.policy.on_start(at, vcpu);
        self.books.open().check_cpus(cpus)
    }

    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet {
        self.books.open().row(vcpu).charged += ran;
        let cpus = self.policy.charge(at, vcpu, ran);
        self.books.open().check_cpus(cpus)
    }

    fn on_timeslice_end(&mut self, at: &Moment, vcpu: VcpuId, why: TimesliceEnd) -> CpuSet {
        let cpus = self.policy.on_timeslice_end(at, vcpu, why);
        self.books.open().check_cpus(cpus)
    }

    fn on_block(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let cpus = self.policy.on_block(at, vcpu);
        self.books.open().check_cpus(cpus)
    }

    fn prepare_pick(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        let cpus = self.policy.prepare_pick(at, cpu);
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

    fn next_timer(&self, cpu: CpuId) -> Option<Time> {
        let alarm = self.policy.next_timer(cpu);
        self.books.open().check_alarm(cpu, alarm);
        alarm
    }

    fn on_timer(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        let cpus = self.policy.on_timer(at, cpu);
        self.books.open().check_cpus(cpus)
    }

    fn timer_charges(&self, at: &Moment, cpu: CpuId) -> CpuSet {
        let cpus = self.policy.timer_charges(at, cpu);
        self.books.open().check_cpus(cpus)
    }

    fn on_hint(&mut self, at: &Moment, vcpu: VcpuId, told: &VcpuHint) -> CpuSet {
        let cpus = self.policy.on_hint(at, vcpu, told);
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
