//! Admission tried out: the policy's own answers, without a host, and with nobody ever running.

use alloc::boxed::Box;

use slackline_units::{CpuSet, Time, VcpuId};

use crate::{AdmitError, Moment, Policy, Spec, Topology, Values};

/// A policy that is only ever asked whether it would take somebody.
pub struct Trial {
    policy: Box<dyn Policy>,
    moment: Moment,
}

impl Trial {
    /// Nobody has joined yet, on a host with these CPUs.
    #[must_use]
    pub fn new(spec: &Spec, values: &Values, topology: &Topology) -> Trial {
        let policy = (spec.build)(values, topology);
        Trial { policy, moment: Moment::at_start(topology.cpus()) }
    }

    /// What follows happens at `now`, which is never earlier than what came before.
    pub fn advance(&mut self, now: Time) {
        self.moment.advance(now);
    }

    /// Somebody joins; `cpus` are those it may run on, none is all. It must not have joined.
    ///
    /// # Errors
    /// Why its share cannot be honoured beside those already promised. It has then not joined.
    pub fn join(
        &mut self,
        vcpu: VcpuId,
        share: &Values,
        cpus: Option<CpuSet>,
    ) -> Result<(), AdmitError> {
        self.moment.join(vcpu);
        if let Some(cpus) = cpus {
            self.moment.allow(vcpu, cpus);
        }
        let admitted = self.policy.admit(&self.moment, vcpu, share);
        if admitted.is_err() {
            self.moment.leave(vcpu);
        }
        admitted
    }

    /// The share of somebody who has joined changes, and where it may run; none is where it might
    /// before.
    ///
    /// # Errors
    /// Why that cannot be honoured. What was promised before stands.
    pub fn change(
        &mut self,
        vcpu: VcpuId,
        share: &Values,
        cpus: Option<CpuSet>,
    ) -> Result<(), AdmitError> {
        let before = self.moment.allowed(vcpu);
        if let Some(cpus) = cpus {
            self.moment.allow(vcpu, cpus);
        }
        let adjusted = self.policy.adjust(&self.moment, vcpu, share).map(|_| ());
        if adjusted.is_err() && cpus.is_some() {
            self.moment.allow(vcpu, before);
        }
        adjusted
    }

    /// Somebody who has joined leaves.
    pub fn leave(&mut self, vcpu: VcpuId) {
        self.moment.leave(vcpu);
        self.policy.leave(&self.moment, vcpu);
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use slackline_units::{CpuId, CpuShare, DomId, Span};

    use super::*;
    use crate::{Given, find};

    fn share(slice_ms: u64) -> Values {
        let slice = alloc::format!("{slice_ms}ms");
        let given = [("slice", Given::Text(&slice)), ("period", Given::Text("10ms"))];
        Values::read(find("edf").unwrap().share_fields, given.into_iter()).unwrap()
    }

    fn trial(cpus: usize) -> Trial {
        let spec = find("edf").unwrap();
        let values = Values::defaults(spec.policy_fields).unwrap();
        Trial::new(spec, &values, &Topology::flat(cpus))
    }

    const fn vcpu(slot: u32) -> VcpuId {
        VcpuId::new(slot, DomId::new(slot), 0)
    }

    #[test]
    fn whoever_is_refused_takes_no_room() {
        let mut trial = trial(1);
        assert_eq!(trial.join(vcpu(0), &share(6), None), Ok(()));
        assert!(trial.join(vcpu(1), &share(6), None).is_err());
        assert_eq!(trial.join(vcpu(1), &share(3), None), Ok(()));
        trial.leave(vcpu(0));
        assert_eq!(trial.join(vcpu(0), &share(6), None), Ok(()));
    }

    /// Of two that ask for 0.45 ms of each millisecond the second one fits only where two looks in
    /// each take no more than what is left.
    #[test]
    fn every_policy_that_admits_counts_what_looking_takes() {
        let policies = ["edf", "gedf", "sedf", "atropos"];
        for spec in policies.map(|name| find(name).unwrap()) {
            let values = Values::defaults(spec.policy_fields).unwrap();
            let terms = spec.limit.unwrap()(CpuShare::from_ppm(450_000), Span::from_ms(1));
            let given = terms.iter().map(|(name, text)| match text.as_str() {
                "true" | "false" => (*name, Given::Flag(text == "true")),
                text => (*name, Given::Text(text.trim_matches('"'))),
            });
            let share = Values::read(spec.share_fields, given).unwrap();
            let second = |dispatch| {
                let topology = Topology::flat(1).with_dispatch(Span::from_us(dispatch));
                let mut trial = Trial::new(spec, &values, &topology);
                trial.join(vcpu(0), &share, None).unwrap();
                let second = trial.join(vcpu(1), &share, None);
                trial.leave(vcpu(0));
                assert!(second.is_ok() || trial.join(vcpu(1), &share, None).is_ok());
                second
            };
            assert_eq!(second(0), Ok(()), "{}", spec.name);
            let refused = second(30).unwrap_err().to_string();
            let says = "450us every 1ms (0.45cpu) plus 0.06cpu for dispatching it 2000 times a \
                        second on top of 0.51cpu already promised is more than the ";
            assert!(refused.starts_with(says), "{}: {refused}", spec.name);
        }
    }

    #[test]
    fn a_refused_change_leaves_share_and_cpus_as_they_were() {
        let only = |cpu| Some(CpuSet::one(CpuId::new(cpu)));
        let mut trial = trial(2);
        assert_eq!(trial.join(vcpu(0), &share(6), only(0)), Ok(()));
        assert_eq!(trial.join(vcpu(1), &share(6), only(1)), Ok(()));
        assert!(trial.change(vcpu(1), &share(6), only(0)).is_err());
        assert!(trial.join(vcpu(2), &share(6), only(1)).is_err());
        assert_eq!(trial.change(vcpu(1), &share(3), only(0)), Ok(()));
        assert_eq!(trial.join(vcpu(2), &share(6), only(1)), Ok(()));
    }
}
