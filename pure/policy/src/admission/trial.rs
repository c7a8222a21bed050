//! Trial admission: runs a policy's own admission control without a host that runs vCPUs.

use alloc::boxed::Box;

use slackline_units::{CpuSet, Span, Time, VcpuId};

use crate::{AdmitError, Moment, Policy, Spec, Topology, Values};

/// A policy that is used for its admission control only.
pub struct Trial {
    policy: Box<dyn Policy>,
    moment: Moment,
}

impl Trial {
    /// Creates a trial without vCPUs on a host with this topology.
    #[must_use]
    pub fn new(spec: &Spec, values: &Values, topology: &Topology) -> Trial {
        let policy = (spec.build)(values, topology);
        Trial { policy, moment: Moment::at_start(topology.cpus()) }
    }

    /// Sets the time at which the following requests are made. The time must not decrease.
    pub fn advance(&mut self, now: Time) {
        self.moment.advance(now);
    }

    /// Admits a new vCPU. `cpus` is its affinity; `None` means all CPUs.
    ///
    /// # Errors
    /// If the parameters cannot be honoured beside the other reservations. The vCPU is then not
    /// admitted.
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

    /// Changes the parameters and affinity of a vCPU that has joined. If `cpus` is `None`, the
    /// affinity stays the same.
    ///
    /// # Errors
    /// If the new parameters cannot be honoured. The old parameters stay in force.
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

    /// Returns the longest slice per `period` that would be admitted now for one more vCPU with the
    /// affinity `cpus` (`None`: all CPUs). `None` if the policy admits any demand.
    #[must_use]
    pub fn room(&self, period: Span, cpus: Option<CpuSet>) -> Option<Span> {
        let cpus = cpus.unwrap_or_else(|| CpuSet::first_n(self.moment.cpus()));
        self.policy.available_slice(&self.moment, period, cpus)
    }

    /// Removes a vCPU that has joined.
    pub fn leave(&mut self, vcpu: VcpuId) {
        self.moment.leave(vcpu);
        self.policy.on_leave(&self.moment, vcpu);
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use proptest::prelude::*;
    use slackline_units::{CpuId, CpuShare, DomId};

    use super::*;
    use crate::{RawValue, find};

    fn share(slice_ms: u64) -> Values {
        let slice = alloc::format!("{slice_ms}ms");
        let given = [("slice", RawValue::Text(&slice)), ("period", RawValue::Text("10ms"))];
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
    fn vcpu_refused_by_admission_occupies_no_capacity() {
        let mut trial = trial(1);
        assert_eq!(trial.join(vcpu(0), &share(6), None), Ok(()));
        assert!(trial.join(vcpu(1), &share(6), None).is_err());
        assert_eq!(trial.join(vcpu(1), &share(3), None), Ok(()));
        trial.leave(vcpu(0));
        assert_eq!(trial.join(vcpu(0), &share(6), None), Ok(()));
    }

    /// Each of two vCPUs reserves 0.45 ms of each millisecond. The second vCPU is admitted only if
    /// the dispatch overhead of both fits into the remaining 0.1 ms.
    #[test]
    fn every_reserving_policy_counts_dispatch_overhead_in_admission() {
        let policies = ["edf", "gedf", "sedf", "atropos"];
        for spec in policies.map(|name| find(name).unwrap()) {
            let values = Values::defaults(spec.policy_fields).unwrap();
            let terms = spec.limit.unwrap()(CpuShare::from_ppm(450_000), Span::from_ms(1));
            let given = terms.iter().map(|(name, text)| match text.as_str() {
                "true" | "false" => (*name, RawValue::Flag(text == "true")),
                text => (*name, RawValue::Text(text.trim_matches('"'))),
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
            let says = "450us every 1ms (0.45cpu) plus 0.06cpu for 2000 dispatches a second does \
                        not fit: 0.51cpu of at most ";
            assert!(refused.starts_with(says), "{}: {refused}", spec.name);
        }
    }

    /// Returns the policy that `name` names, and true if `name` ends in ` split`.
    fn named(name: &str) -> (&'static Spec, bool) {
        let plain = name.strip_suffix(" split");
        (find(plain.unwrap_or(name)).unwrap(), plain.is_some())
    }

    /// Returns vCPU parameters with this slice and period in nanoseconds. `None` if they are out of
    /// range.
    fn exactly(spec: &Spec, slice: u64, period: u64) -> Option<Values> {
        let terms = spec.limit?(CpuShare::ONE, Span::from_ns(1));
        let texts = [(terms[0].0, slice), (terms[1].0, period)];
        let texts = texts.map(|(name, ns)| (name, alloc::format!("{ns}ns")));
        let given = texts.iter().map(|(name, text)| (*name, RawValue::Text(text)));
        Values::read(spec.share_fields, given).ok()
    }

    proptest! {
        /// Holds for any sequence of requests to join, to change and to leave, for any dispatch
        /// overhead and any affinity.
        #[test]
        fn admission_accepts_reported_available_slice_and_refuses_longer_slice(
            steps in prop::collection::vec((0u32..8, 1u64..1_000, 0usize..6, 0usize..4), 0..30),
            (period, only) in (0usize..6, 0usize..4),
            dispatch in 0u64..3,
        ) {
            const PERIODS: [u64; 6] =
                [1_000_000, 3_000_001, 7_777_777, 20_000_000, 1_000_000_007, 10_000_000_000];
            let allowed = |cpu| (cpu < 3).then(|| CpuSet::one(CpuId::new(cpu)));
            let policies = ["edf", "edf split", "gedf", "sedf", "sedf split", "atropos"];
            for (spec, splits) in policies.map(named) {
                let given = splits.then_some(("place", RawValue::Text("split")));
                let values = Values::read(spec.policy_fields, given.into_iter()).unwrap();
                let topology = Topology::flat(3).with_dispatch(Span::from_us(dispatch * 7));
                let mut trial = Trial::new(spec, &values, &topology);
                let mut there = [false; 8];
                for &(slot, part, period, cpu) in &steps {
                    let (who, is_there) = (vcpu(slot), &mut there[slot as usize]);
                    let slice = PERIODS[period] / 1_000 * part;
                    let Some(share) = exactly(spec, slice, PERIODS[period]) else { continue };
                    match (*is_there, part % 3) {
                        (false, _) => *is_there = trial.join(who, &share, allowed(cpu)).is_ok(),
                        (true, 0) => {
                            trial.leave(who);
                            *is_there = false;
                        }
                        (true, _) => drop(trial.change(who, &share, allowed(cpu))),
                    }
                }
                let (who, period) = (vcpu(8), PERIODS[period]);
                let room = trial.room(Span::from_ns(period), allowed(only)).unwrap().ns();
                if room > 0 {
                    let share = exactly(spec, room, period).unwrap();
                    let joined = trial.join(who, &share, allowed(only));
                    prop_assert_eq!(joined, Ok(()), "{}", spec.name);
                    trial.leave(who);
                }
                if let Some(share) = exactly(spec, room + 1, period).filter(|_| room < period) {
                    let refused = trial.join(who, &share, allowed(only));
                    prop_assert!(refused.is_err(), "{}: {room} + 1 of {period}", spec.name);
                    let says = match refused {
                        Err(
                            AdmitError::NoRoom { room, .. }
                            | AdmitError::NoRoomInParts { room, .. }
                            | AdmitError::NoRoomTogether { room, .. },
                        ) => room.ns(),
                        _ => room,
                    };
                    prop_assert_eq!(says, room, "{}: room in the refusal", spec.name);
                }
            }
        }
    }

    #[test]
    fn vcpu_keeps_old_parameters_and_affinity_after_a_refused_change() {
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
