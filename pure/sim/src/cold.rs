//! What a domain pays for coming to a CPU after others: for the switch, and for what it has kept in
//! the cache and they have pushed out of it.
//!
//! Others push out as fast as a cache can be filled. So who comes back pays for as long as they
//! have run there since, and at most for all that it keeps. On another CPU it finds what the two
//! share of it (a core, a last-level cache), less what others have pushed out of that: all who have
//! run on any CPU that shares it, as far as they have stopped.

use slackline_host::policy::Level;
use slackline_scenario::{Scenario, Warm};
use slackline_units::{CpuId, CpuSet, Span, VcpuId};

/// What domains find cold, and how much has run where.
pub(crate) struct Cold {
    /// By domain; empty if nobody pays anything.
    prices: Vec<Price>,
    /// By CPU: the CPU time that anybody has used there.
    used: Vec<Span>,
    /// By slot: how much that was where the vCPU ran last, when it stopped there.
    left_at: Vec<Span>,
    /// What cores share, and what last-level caches share; none where nothing is found elsewhere.
    shared: Option<[Shared; 2]>,
}

/// What the CPUs of each group of a level share of the cache.
struct Shared {
    /// How much of what a domain keeps is there, in millionths.
    warm: u32,
    /// By CPU: its group.
    groups: Vec<CpuSet>,
    /// By CPU, of the first of each group: the CPU time that anybody has used on any of it.
    used: Vec<Span>,
    /// By slot: how much that was where the vCPU ran last, when it stopped there.
    left_at: Vec<Span>,
}

impl Shared {
    fn new(scenario: &Scenario, level: Level, warm: u32) -> Shared {
        let (topology, cpus) = (&scenario.host.topology, scenario.host.cpus);
        let groups = (0..cpus).map(|cpu| topology.group_of(level, CpuId::new(cpu))).collect();
        let vcpus = scenario.domains.iter().map(|domain| domain.vcpus.len()).sum();
        Shared { warm, groups, used: vec![Span::ZERO; cpus], left_at: vec![Span::ZERO; vcpus] }
    }

    /// What has been used on all CPUs that share it with this one.
    fn used(&mut self, cpu: CpuId) -> &mut Span {
        let first = self.groups[cpu.index()].first().unwrap_or(cpu);
        &mut self.used[first.index()]
    }

    /// What a vCPU that comes from another CPU of the group has to fill of all that it keeps.
    fn refill(&self, vcpu: VcpuId, cpu: CpuId, cache: Span) -> Span {
        let kept = u128::from(cache.ns()) * u128::from(self.warm) / 1_000_000;
        let kept = Span::from_ns(u64::try_from(kept).expect("a part of a span"));
        let first = self.groups[cpu.index()].first().unwrap_or(cpu);
        let since = self.used[first.index()] - self.left_at[vcpu.slot()];
        (cache - kept) + kept.min(since)
    }
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
        let Warm { core, cache } = scenario.host.warm;
        let levels = [(Level::Core, core), (Level::Cache, cache)];
        let shared = (core > 0 || cache > 0)
            .then(|| levels.map(|(level, warm)| Shared::new(scenario, level, warm)));
        Cold { prices, used, left_at: vec![Span::ZERO; vcpus], shared }
    }

    /// Whether it costs nobody anything: then nothing need be kept.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.prices.is_empty()
    }

    /// Cost of starting a vCPU on a CPU on which `before` ran right before it.
    #[inline(never)] // Most hosts have nothing of it.
    pub(crate) fn dispatch(&self, vcpu: VcpuId, before: Option<VcpuId>) -> Span {
        if before == Some(vcpu) { Span::ZERO } else { self.price(vcpu).dispatch }
    }

    /// Cost of filling the cache for a vCPU that ran last at `home`, and had `owing` of its refill
    /// left when it stopped there.
    #[inline(never)] // As above.
    pub(crate) fn refill(
        &self,
        (vcpu, owing): (VcpuId, Span),
        (cpu, home): (CpuId, Option<CpuId>),
    ) -> Span {
        let cache = self.price(vcpu).cache;
        if home != Some(cpu) {
            return self.refill_elsewhere(vcpu, (cpu, home), cache);
        }
        cache.min(owing + (self.used[cpu.index()] - self.left_at[vcpu.slot()]))
    }

    fn price(&self, vcpu: VcpuId) -> Price {
        self.prices[vcpu.domain().number() as usize]
    }

    /// What it pays for the cache on another CPU than before.
    fn refill_elsewhere(
        &self,
        vcpu: VcpuId,
        (cpu, home): (CpuId, Option<CpuId>),
        cache: Span,
    ) -> Span {
        let (Some(home), Some(shared)) = (home, &self.shared) else { return cache };
        let has_both = |shared: &&Shared| shared.groups[cpu.index()].contains(home);
        shared.iter().find(has_both).map_or(cache, |shared| shared.refill(vcpu, cpu, cache))
    }

    /// A vCPU stops on a CPU on which it has been for so long.
    #[inline(never)] // As above.
    pub(crate) fn stop(&mut self, vcpu: VcpuId, cpu: CpuId, ran: Span) {
        self.used[cpu.index()] += ran;
        self.left_at[vcpu.slot()] = self.used[cpu.index()];
        for shared in self.shared.iter_mut().flatten() {
            *shared.used(cpu) += ran;
            shared.left_at[vcpu.slot()] = *shared.used(cpu);
        }
    }
}
