//! What a domain pays for coming to a CPU after others: for the switch, and for what it has kept in
//! the cache and they have pushed out of it.
//!
//! Others push out as fast as a cache can be filled. So who comes back pays for as long as they
//! have run there since, and at most for all that it keeps. On another CPU it finds nothing of it.

use slackline_scenario::Scenario;
use slackline_units::{CpuId, Span, VcpuId};

/// What domains find cold, and how much has run where.
pub(crate) struct Cold {
    /// By domain; empty if nobody pays anything.
    prices: Vec<Price>,
    /// By CPU: the CPU time that anybody has used there.
    used: Vec<Span>,
    /// By slot: how much that was where the vCPU ran last, when it stopped there.
    left_at: Vec<Span>,
}

#[derive(Clone, Copy)]
struct Price {
    /// After another, or after nobody.
    dispatch: Span,
    /// For filling the cache with all that it keeps there.
    cache: Span,
}

impl Cold {
    pub(crate) fn new(scenario: &Scenario) -> Cold {
        let domains = scenario.domains.iter();
        let price = |domain: &slackline_scenario::Domain| {
            let (dispatch, cache) = (domain.dispatch, domain.cache);
            Price { dispatch, cache }
        };
        let mut prices: Vec<Price> = domains.clone().map(price).collect();
        if prices.iter().all(|price| price.dispatch.is_zero() && price.cache.is_zero()) {
            prices.clear();
        }
        let vcpus = domains.map(|domain| domain.vcpus.len()).sum();
        let used = vec![Span::ZERO; scenario.host.cpus];
        Cold { prices, used, left_at: vec![Span::ZERO; vcpus] }
    }

    /// Whether it costs nobody anything: then nothing need be kept.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.prices.is_empty()
    }

    /// What a vCPU pays for coming to a CPU on which somebody or nobody was right before it, having
    /// run last at `home`.
    #[inline(never)] // Most hosts have nothing of it.
    pub(crate) fn start(
        &self,
        (vcpu, before): (VcpuId, Option<VcpuId>),
        (cpu, home): (CpuId, Option<CpuId>),
    ) -> Span {
        let price = self.prices[vcpu.domain().number() as usize];
        let dispatch = if before == Some(vcpu) { Span::ZERO } else { price.dispatch };
        if home != Some(cpu) {
            return dispatch + price.cache;
        }
        dispatch + price.cache.min(self.used[cpu.index()] - self.left_at[vcpu.slot()])
    }

    /// A vCPU stops on a CPU on which it has been for so long.
    #[inline(never)] // As above.
    pub(crate) fn stop(&mut self, vcpu: VcpuId, cpu: CpuId, ran: Span) {
        self.used[cpu.index()] += ran;
        self.left_at[vcpu.slot()] = self.used[cpu.index()];
    }
}
