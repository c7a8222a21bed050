//! vCPU that is charged for balancing: the service vCPU, or mini-domain, of the thesis.
//! [Diestelhorst §4.4]
//!
//! The service vCPU has a slice of CPU 0 like any vCPU. It wakes when a call of the balancer is
//! due, and runs for the cost of the call. The call is made when the service vCPU blocks again. So
//! EDF determines the time of the call: with admission, the call comes before the deadline of the
//! service vCPU.
//!
//! Without a service vCPU the balancer is called when a call is due, and the call costs no time. A
//! share of CPU 0 as large as that of the service vCPU then stays free. So the real cost of a call
//! makes no reservation tardy.

use alloc::string::ToString;
use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, CpuShare, Time, VcpuId};

use crate::balance::CALL;
use crate::balance::fields::{BALANCER, BALANCER_SLICE};
use crate::policies::sedf::{Sedf, terms};
use crate::{BalancerVcpu, RawValue, Topology, Values};

/// CPU of the service vCPU, and of the timer of the balancer.
const HOME: CpuId = CpuId::new(0);

/// Returns the service vCPU that is charged for balancing under these parameters. `None` if there
/// is nothing to balance.
pub(in crate::policies::sedf) fn payer(
    values: &Values,
    topology: &Topology,
) -> Option<BalancerVcpu> {
    if values.choice(&BALANCER) == "none" || topology.cpus() == 1 {
        return None;
    }
    let (slice, period) = (values.span(&BALANCER_SLICE).to_string(), CALL.to_string());
    let given = [
        ("slice", RawValue::Text(&slice)),
        ("period", RawValue::Text(&period)),
        ("extra", RawValue::Flag(false)),
        ("balances", RawValue::Flag(true)),
    ];
    let share = Values::read(terms::FIELDS, given.into_iter())
        .expect("the share of the payer has valid fields");
    Some(BalancerVcpu { every: CALL, cpu: HOME, share })
}

/// The vCPUs that are charged for balancing, usually one or none.
#[derive(Debug)]
pub(in crate::policies::sedf) struct BalancerVcpus {
    all: Vec<VcpuId>,
    /// Time at which a service vCPU blocked after it ran for a call that was due. `None` after the
    /// call has been made.
    pub(in crate::policies::sedf) paid: Option<Time>,
    /// Share of CPU 0 that stays free while there is no service vCPU.
    keeps: CpuShare,
}

impl BalancerVcpus {
    pub(in crate::policies::sedf) fn new(keeps: CpuShare) -> BalancerVcpus {
        BalancerVcpus { all: Vec::new(), paid: None, keeps }
    }

    pub(in crate::policies::sedf) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the share of a CPU that stays free of reservations because there is no service vCPU.
    pub(in crate::policies::sedf) fn keeps(&self, cpu: CpuId) -> CpuShare {
        let is_kept = cpu == HOME && self.is_empty();
        if is_kept { self.keeps } else { CpuShare::NONE }
    }

    /// Handles the block of a vCPU while a balancer call is due. If the vCPU is a service vCPU, the
    /// call can be made. Returns the CPU to reschedule: its timer makes the call, since all CPUs
    /// must be measured before.
    pub(in crate::policies::sedf) fn note_paid(&mut self, now: Time, vcpu: VcpuId) -> CpuSet {
        if !self.all.contains(&vcpu) {
            return CpuSet::NONE;
        }
        self.paid.get_or_insert(now);
        CpuSet::one(HOME)
    }
}

impl Sedf {
    /// Makes a vCPU a service vCPU, which is charged for balancing.
    pub(in crate::policies::sedf) fn pay(&mut self, vcpu: VcpuId) {
        self.balancer.iter_mut().for_each(|balancer| balancer.payers.all.push(vcpu));
    }

    /// Makes a service vCPU an ordinary vCPU again. Returns true if the vCPU was a service vCPU.
    pub(in crate::policies::sedf) fn stop_paying(&mut self, vcpu: VcpuId) -> bool {
        let Some(balancer) = &mut self.balancer else { return false };
        let all = &mut balancer.payers.all;
        let place = all.iter().position(|&other| other == vcpu);
        place.map(|place| all.swap_remove(place)).is_some()
    }

    /// Updates the timer of the balancer after the set of service vCPUs has changed. If no service
    /// vCPU is left, a call that is already due is skipped. Returns the CPU to reschedule, whose
    /// timer may change.
    pub(in crate::policies::sedf) fn payers_changed(&mut self, now: Time) -> CpuSet {
        let Some(balancer) = &mut self.balancer else { return CpuSet::NONE };
        if balancer.payers.is_empty() {
            balancer.skip(now);
        }
        CpuSet::one(HOME)
    }
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;

    use slackline_units::{DomId, Span};

    use super::*;
    use crate::policies::sedf::SPEC;
    use crate::{AdmitError, Moment, Policy};

    /// Two CPUs on which no vCPU ever runs.
    struct Host {
        policy: Box<dyn Policy>,
        at: Moment,
    }

    impl Host {
        fn new(words: &str) -> Host {
            let values = Values::read_written(SPEC.policy_fields, words).unwrap();
            let policy = (SPEC.build)(&values, &Topology::flat(2));
            Host { policy, at: Moment::at_start(2) }
        }

        fn join(&mut self, slot: u32, cpu: usize, share: &Values) -> Result<VcpuId, AdmitError> {
            let vcpu = VcpuId::new(slot, DomId::new(slot), 0);
            self.at.join(vcpu);
            self.at.allow(vcpu, CpuSet::one(CpuId::new(cpu)));
            self.policy.admit(&self.at, vcpu, share).map(|()| vcpu)
        }

        /// Wakes the vCPU at `ms` milliseconds and blocks it again at once. Returns the CPUs to
        /// reschedule.
        fn runs(&mut self, vcpu: VcpuId, ms: u64) -> CpuSet {
            self.at.advance(Time::START + Span::from_ms(ms));
            self.at.set_awake(vcpu, true);
            self.policy.on_wake(&self.at, vcpu);
            self.at.set_awake(vcpu, false);
            self.policy.on_block(&self.at, vcpu)
        }

        fn rings(&self) -> [Option<u64>; 2] {
            let ms = |alarm: Time| (alarm - Time::START) / Span::from_ms(1);
            [0, 1].map(|cpu| self.policy.next_timer(CpuId::new(cpu)).map(ms))
        }

        fn ring(&mut self) -> CpuSet {
            self.policy.on_timer(&self.at, HOME)
        }

        fn room(&self) -> Span {
            let room = self.policy.available_slice(&self.at, Span::from_ms(50), CpuSet::one(HOME));
            room.expect("sedf reserves slices")
        }
    }

    fn share(words: &str) -> Values {
        Values::read_written(SPEC.share_fields, words).unwrap()
    }

    fn declared(words: &str, cpus: usize) -> Option<BalancerVcpu> {
        let values = Values::read_written(SPEC.policy_fields, words).unwrap();
        payer(&values, &Topology::flat(cpus))
    }

    #[test]
    fn sedf_vcpu_of_the_balancer_reserves_the_configured_balancer_slice() {
        assert_eq!(declared("balancer=none", 2), None);
        assert_eq!(declared("balancer=thesis", 1), None);
        let BalancerVcpu { every, cpu, share } = declared("balancer=thesis balancer-slice=1ms", 2)
            .expect("a balancer on two CPUs has a payer");
        assert_eq!((every, cpu), (Span::from_ms(50), HOME));
        let promise = (SPEC.promise)(&share).unwrap().expect("a payer has a reservation");
        let reservation = promise.reservation;
        assert_eq!((reservation.slice(), reservation.period()), (Span::from_ms(1), every));
        assert!(promise.exact);
    }

    #[test]
    fn sedf_balancer_call_waits_until_a_balancer_vcpu_has_run() {
        let mut host = Host::new("balancer=repaired");
        let payer = host.join(0, 1, &share("slice=100us period=50ms balances=true")).unwrap();
        let other = host.join(1, 1, &share("slice=1ms period=50ms")).unwrap();
        assert_eq!(host.rings(), [None, None], "the service vCPU has not run");
        assert_eq!(host.runs(payer, 49), CpuSet::NONE, "no call is due");
        assert_eq!(host.runs(other, 60), CpuSet::NONE, "the vCPU is no service vCPU");
        assert_eq!(host.rings(), [None, None]);
        assert_eq!(host.runs(payer, 61), CpuSet::one(HOME));
        assert_eq!(host.rings(), [Some(61), None]);
        host.ring();
        assert_eq!(host.rings(), [None, None]);
        // The second call takes a sample, so all CPUs are measured before it.
        assert_eq!(host.policy.timer_charges(&host.at, HOME), CpuSet::one(HOME));
        host.runs(payer, 100);
        assert_eq!(host.policy.timer_charges(&host.at, HOME), CpuSet::first_n(2));
    }

    #[test]
    fn sedf_timer_calls_balancer_if_no_balancer_vcpu_exists() {
        let paying = "slice=100us period=50ms balances=true";
        for leaves in [true, false] {
            let mut host = Host::new("balancer=repaired");
            let stays = host.join(0, 0, &share("slice=1ms period=50ms")).unwrap();
            assert_eq!(host.rings(), [Some(50), None]);
            let payers = [1, 2].map(|slot| host.join(slot, 1, &share(paying)).unwrap());
            host.runs(payers[0], 70);
            assert_eq!(host.rings(), [Some(70), None]);
            host.policy.on_leave(&host.at, payers[1]);
            assert_eq!(host.rings(), [Some(70), None], "a service vCPU has run for the call");
            let asked = if leaves {
                host.policy.on_leave(&host.at, payers[0])
            } else {
                let share = share("slice=100us period=50ms");
                host.policy.adjust(&host.at, payers[0], &share).unwrap()
            };
            assert!(asked.contains(HOME));
            assert_eq!(host.rings(), [Some(100), None], "the call that was due is skipped");
            let asked = host.policy.adjust(&host.at, stays, &share(paying)).unwrap();
            assert!(asked.contains(HOME));
            assert_eq!(host.rings(), [None, None]);
        }
    }

    /// The last vCPU that is admitted to CPU 0 is a service vCPU. So the share kept for balancing
    /// is available to it and to no other vCPU. After it leaves, the share is kept again.
    #[test]
    fn sedf_balancer_slice_is_available_only_to_balancer_vcpus() {
        let mut host = Host::new("balancer=planned reserve=0cpu balancer-slice=33333ns");
        let paying = share("slice=33333ns period=50ms extra=false balances=true");
        let all = host.room();
        assert!(Span::from_us(49_966) < all && all <= Span::from_ns(50_000_000 - 33_333), "{all}");
        let most = alloc::format!("slice={all} period=50ms");
        host.join(0, 0, &share(&most)).unwrap();
        let payer = host.join(1, 0, &paying).unwrap();
        let before = host.room();
        assert!(before < Span::from_us(5), "{before}");
        let less = share("slice=5us period=50ms balances=true");
        host.policy.adjust(&host.at, payer, &less).unwrap();
        let room = Span::from_ns(50_000_000 - 5_000) - all;
        assert_eq!(host.room(), room, "the service vCPU reserves only 5 us");
        // An ordinary vCPU must leave the kept share free.
        let other = share("slice=20us period=50ms");
        let refused = host.policy.adjust(&host.at, payer, &other).unwrap_err().to_string();
        assert!(refused.contains("of at most 0.999333cpu"), "{refused}");
        assert_eq!(host.rings(), [None, None], "the vCPU is still a service vCPU");
        host.policy.on_leave(&host.at, payer);
        assert_eq!(host.room(), Span::ZERO);
    }
}
