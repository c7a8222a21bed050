//! A policy that forwards all calls to another policy and counts them. The policy is used in
//! separate runs that are not timed.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use slackline_policy::{
    Account, AdmitError, Moment, Pick, Policy, Spec, TimesliceEnd, Topology, Values, VcpuHint,
};
use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

/// Number of calls of `pick`. The counters are global, because the host owns the policy during a
/// run and does not return it.
static PICKS: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Policy to which the calls are forwarded.
static INNER: OnceLock<&'static Spec> = OnceLock::new();

/// Numbers of calls of a policy since the counters were last read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls {
    /// Number of scheduling decisions, which are the calls of `pick`.
    pub(crate) picks: u64,
    /// Number of all calls during the run.
    pub(crate) all: u64,
}

/// Returns a policy that counts the calls of the policy `spec`. Only one policy per process can be
/// counted.
pub(crate) fn counted(spec: &'static Spec) -> &'static Spec {
    let inner = INNER.get_or_init(|| spec);
    assert_eq!(inner.name, spec.name, "only one policy per process can be counted");
    Box::leak(Box::new(Spec { build, ..*spec }))
}

/// Returns the counts, and sets the counters to zero.
pub(crate) fn take() -> Calls {
    let picks = PICKS.swap(0, Ordering::Relaxed);
    Calls { picks, all: CALLS.swap(0, Ordering::Relaxed) + picks }
}

fn build(values: &Values, topology: &Topology) -> Box<dyn Policy> {
    let spec = INNER.get().expect("`counted` sets the inner policy");
    Box::new(Counting((spec.build)(values, topology)))
}

struct Counting(Box<dyn Policy>);

fn count() {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

impl Policy for Counting {
    fn admit(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<(), AdmitError> {
        self.0.admit(at, vcpu, share)
    }

    fn on_join(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.0.on_join(at, vcpu)
    }

    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<CpuSet, AdmitError> {
        count();
        self.0.adjust(at, vcpu, share)
    }

    fn on_leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.0.on_leave(at, vcpu)
    }

    fn on_wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        count();
        self.0.on_wake(at, vcpu)
    }

    fn on_start(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        count();
        self.0.on_start(at, vcpu)
    }

    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet {
        count();
        self.0.charge(at, vcpu, ran)
    }

    fn on_timeslice_end(&mut self, at: &Moment, vcpu: VcpuId, why: TimesliceEnd) -> CpuSet {
        count();
        self.0.on_timeslice_end(at, vcpu, why)
    }

    fn on_block(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        count();
        self.0.on_block(at, vcpu)
    }

    fn prepare_pick(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        count();
        self.0.prepare_pick(at, cpu)
    }

    fn pick(&self, at: &Moment, cpu: CpuId) -> Pick {
        PICKS.fetch_add(1, Ordering::Relaxed);
        self.0.pick(at, cpu)
    }

    fn next_timer(&self, cpu: CpuId) -> Option<Time> {
        count();
        self.0.next_timer(cpu)
    }

    fn on_timer(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        count();
        self.0.on_timer(at, cpu)
    }

    fn timer_charges(&self, at: &Moment, cpu: CpuId) -> CpuSet {
        count();
        self.0.timer_charges(at, cpu)
    }

    fn on_hint(&mut self, at: &Moment, vcpu: VcpuId, told: &VcpuHint) -> CpuSet {
        count();
        self.0.on_hint(at, vcpu, told)
    }

    fn account(&self, vcpu: VcpuId) -> Account {
        self.0.account(vcpu)
    }
}
