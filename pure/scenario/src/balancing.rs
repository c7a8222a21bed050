//! Service vCPU that is charged for the calls of a policy's balancer. It exists only if these calls
//! cost CPU time on the simulated host.

use std::borrow::Cow;
use std::collections::BTreeMap;

use slackline_policy::BalancerVcpu;
use slackline_units::{CpuSet, DomId, Span, Time, VcpuId};

use crate::table::{Item, Mistake};
use crate::terms::VcpuStart;
use crate::{Balancing, Domain, Draw, LONGEST, Program, Scenario, Step};

/// Name of the domain of the service vCPU. No other domain can have this name.
const NAME: &str = "[balancer]";

const KEYS: &[&str] = &["call", "cpu", "vcpu"];

/// Reads the table `balancing` of a scenario.
pub(crate) fn read(item: &Item<'_>) -> Result<Balancing, Mistake> {
    let table = item.table("`balancing`")?.allow(KEYS)?;
    let cost = |key| Ok(table.maybe(key, |item| item.span())?.unwrap_or_default());
    let (call, cpu, vcpu) = (cost("call")?, cost("cpu")?, cost("vcpu")?);
    Ok(Balancing { call, cpu, vcpu, line: item.line() })
}

impl Balancing {
    /// Returns the CPU time of a balancer call on a host with `cpus` CPUs and `vcpus` vCPUs. The
    /// time is at most [`LONGEST`], because a longer call could not end within a run.
    fn cost(&self, cpus: usize, vcpus: usize) -> Span {
        let of = |each: Span, count: usize| u128::from(each.ns()) * count as u128;
        let ns = of(self.call, 1) + of(self.cpu, cpus) + of(self.vcpu, vcpus);
        u64::try_from(ns).map_or(LONGEST, Span::from_ns).min(LONGEST)
    }
}

impl Scenario {
    /// Returns the scenario as a simulated host runs it. If the policy has a balancer and balancer
    /// calls cost CPU time, a domain that is charged for the calls is added at the end.
    #[must_use]
    pub fn simulated(&self) -> Cow<'_, Scenario> {
        let vcpus = self.domains.iter().map(|domain| domain.vcpus.len()).sum();
        let cost = self.host.balancing.cost(self.host.cpus, vcpus);
        let payer = self.policy.spec.payer.filter(|_| !cost.is_zero());
        let payer = payer.and_then(|payer| payer(&self.policy.values, &self.host.topology));
        let Some(payer) = payer else { return Cow::Borrowed(self) };
        let mut scenario = self.clone();
        scenario.domains.push(self.payer(payer, vcpus, cost));
        Cow::Owned(scenario)
    }

    /// Returns the service vCPU that is charged for balancer calls. `None` unless
    /// [`Scenario::simulated`] returned this scenario and added such a vCPU.
    #[must_use]
    pub fn balancer(&self) -> Option<VcpuId> {
        let domain = self.domains.last().filter(|domain| domain.name == NAME);
        domain.map(|domain| domain.vcpus[0])
    }

    /// Returns the domain that is charged for balancer calls. Its only vCPU has the slot `slot`
    /// (its index among all vCPUs), and computes for `cost` at each call.
    fn payer(
        &self,
        BalancerVcpu { every, cpu, share }: BalancerVcpu,
        slot: usize,
        cost: Span,
    ) -> Domain {
        let small =
            |number: usize| u32::try_from(number).expect("a scenario has at most a million vCPUs");
        let id = DomId::new(small(self.domains.len()));
        let instant = Step::Instant { period: every, offset: Span::ZERO };
        Domain {
            name: NAME.to_owned(),
            id,
            vcpus: vec![VcpuId::new(small(slot), id, 0)],
            program: Program::by_the_clock(instant, Step::Compute(Draw::Fixed(cost))),
            parallel: None,
            system: None,
            dispatch: Span::ZERO,
            cache: Span::ZERO,
            stop_lateness: None,
            wake_pass: None,
            cpus: Some(CpuSet::one(cpu)),
            live: None,
            agent: None,
            relay: None,
            joins: Time::START,
            start: VcpuStart::default(),
            leaves: None,
            line: self.host.balancing.line,
            column: 1,
            shares: BTreeMap::from([(self.policy.spec.name, share)]),
            exceptions: BTreeMap::new(),
        }
    }
}
