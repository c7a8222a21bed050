//! Costs of dispatching a domain on a CPU after other domains ran on this CPU. The costs are the
//! context switch, and the refill of the cache content that those domains evicted.
//!
//! The model assumes that other vCPUs evict cache content as fast as a cache can be filled. If a
//! vCPU returns to its last CPU, the refill takes as long as other vCPUs have run on that CPU in
//! the meantime. The refill takes at most as long as filling the whole working set of the vCPU. A
//! vCPU that moves to another CPU finds its content in a cache that both CPUs share (of a core, or
//! a last-level cache). Content that other vCPUs have evicted from that cache is missing. All run
//! intervals that have ended on any CPU that shares the cache count as eviction.

use slackline_host::policy::Level;
use slackline_scenario::{Scenario, WarmCache};
use slackline_units::{CpuId, CpuSet, Span, VcpuId};

/// Costs of cold caches by domain, and CPU time used by CPU and by cache.
pub(crate) struct CacheModel {
    /// Costs of dispatching and of filling the cache, by domain. Empty if all costs are zero.
    prices: Vec<CachePrice>,
    /// Total CPU time used on each CPU.
    used: Vec<Span>,
    /// Value of `used` for the CPU on which each vCPU ran last, at the time when the vCPU stopped.
    /// Indexed by vCPU slot.
    left_at: Vec<Span>,
    /// Caches shared by the CPUs of a core and by the CPUs of a last-level group. `None` if CPUs
    /// share no cache.
    shared: Option<[SharedCache; 2]>,
}

/// Model of the cache content that CPUs share, for one level of the topology: core or last-level
/// group.
struct SharedCache {
    /// Part of a vCPU's working set that lies in the shared cache, in millionths.
    warm: u32,
    /// CPUs that share the cache with each CPU, by index of the CPU.
    groups: Vec<CpuSet>,
    /// Total CPU time used on each group of CPUs. The index is the number of the group's first CPU.
    used: Vec<Span>,
    /// Value of `used` for the group in which each vCPU ran last, at the time when the vCPU
    /// stopped. Indexed by vCPU slot.
    left_at: Vec<Span>,
}

impl SharedCache {
    fn new(scenario: &Scenario, level: Level, warm: u32) -> SharedCache {
        let (topology, cpus) = (&scenario.host.topology, scenario.host.cpus);
        let groups = (0..cpus).map(|cpu| topology.group_of(level, CpuId::new(cpu))).collect();
        let vcpus = scenario.domains.iter().map(|domain| domain.vcpus.len()).sum();
        SharedCache { warm, groups, used: vec![Span::ZERO; cpus], left_at: vec![Span::ZERO; vcpus] }
    }

    /// Returns the total CPU time used on all CPUs that share the cache with this CPU.
    fn used(&mut self, cpu: CpuId) -> &mut Span {
        let first = self.groups[cpu.index()].first().unwrap_or(cpu);
        &mut self.used[first.index()]
    }

    /// Returns the time that a vCPU needs to refill the cache after it moved to this CPU from
    /// another CPU of the same group. `cache` is the refill time of its whole working set.
    fn refill(&self, vcpu: VcpuId, cpu: CpuId, cache: Span) -> Span {
        let kept = u128::from(cache.ns()) * u128::from(self.warm) / 1_000_000;
        let kept = Span::from_ns(u64::try_from(kept).expect("a part of a span is a span"));
        let first = self.groups[cpu.index()].first().unwrap_or(cpu);
        let since = self.used[first.index()] - self.left_at[vcpu.slot()];
        (cache - kept) + kept.min(since)
    }
}

#[derive(Clone, Copy)]
struct CachePrice {
    /// Cost of a dispatch after another vCPU, or on an idle CPU.
    dispatch: Span,
    /// Cost of filling the cache with the whole working set.
    cache: Span,
}

impl CacheModel {
    pub(crate) fn new(scenario: &Scenario) -> CacheModel {
        let domains = scenario.domains.iter();
        let price = |domain: &slackline_scenario::Domain| {
            let (dispatch, cache) = (domain.dispatch, domain.cache);
            CachePrice { dispatch, cache }
        };
        let mut prices: Vec<CachePrice> = domains.clone().map(price).collect();
        if prices.iter().all(|price| price.dispatch.is_zero() && price.cache.is_zero()) {
            prices.clear();
        }
        let vcpus = domains.map(|domain| domain.vcpus.len()).sum();
        let used = vec![Span::ZERO; scenario.host.cpus];
        let WarmCache { core, cache } = scenario.host.warm;
        let levels = [(Level::Core, core), (Level::Cache, cache)];
        let shared = (core > 0 || cache > 0)
            .then(|| levels.map(|(level, warm)| SharedCache::new(scenario, level, warm)));
        CacheModel { prices, used, left_at: vec![Span::ZERO; vcpus], shared }
    }

    /// Returns true if no domain has dispatch or cache costs. Then nothing needs to be tracked.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.prices.is_empty()
    }

    /// Returns the dispatch cost of starting a vCPU on a CPU. `before` is the vCPU that ran on this
    /// CPU directly before. `None` if the CPU was idle.
    #[inline(never)] // Most scenarios have no such cost.
    pub(crate) fn dispatch(&self, vcpu: VcpuId, before: Option<VcpuId>) -> Span {
        if before == Some(vcpu) { Span::ZERO } else { self.price(vcpu).dispatch }
    }

    /// Returns the cost of filling the cache for a vCPU that starts on `cpu` and ran last on `home`
    /// (`None` if it never ran). `owing` is the remaining cost of an earlier refill that was not
    /// complete when the vCPU stopped on `home`.
    #[inline(never)] // Most scenarios have no such cost.
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

    fn price(&self, vcpu: VcpuId) -> CachePrice {
        self.prices[vcpu.domain().number() as usize]
    }

    /// Returns the cost of filling the cache for a vCPU that starts on `cpu` and ran last on
    /// another CPU, `home` (`None` if it never ran). `cache` is the refill time of its whole
    /// working set.
    fn refill_elsewhere(
        &self,
        vcpu: VcpuId,
        (cpu, home): (CpuId, Option<CpuId>),
        cache: Span,
    ) -> Span {
        let (Some(home), Some(shared)) = (home, &self.shared) else { return cache };
        let has_both = |shared: &&SharedCache| shared.groups[cpu.index()].contains(home);
        shared.iter().find(has_both).map_or(cache, |shared| shared.refill(vcpu, cpu, cache))
    }

    /// Records that a vCPU stops after it ran on a CPU for `ran`.
    #[inline(never)] // Most scenarios have no such cost.
    pub(crate) fn stop(&mut self, vcpu: VcpuId, cpu: CpuId, ran: Span) {
        self.used[cpu.index()] += ran;
        self.left_at[vcpu.slot()] = self.used[cpu.index()];
        for shared in self.shared.iter_mut().flatten() {
            *shared.used(cpu) += ran;
            shared.left_at[vcpu.slot()] = *shared.used(cpu);
        }
    }
}
