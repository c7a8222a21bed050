//! State of the `planned` balancer apart from its plan: scheduled migrations, and usage and cost of
//! each vCPU.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

use crate::Roster;
use crate::balance::books::LoadSamples;
use crate::balance::planned::{Piece, Plan, Split};
use crate::balance::{Move, RUN, SAMPLE};
use crate::policies::sedf::terms::Cost;

/// Limit of the correction of a vCPU's planned rate for past usage: at most
/// `rate / MOST_CORRECTION`. [balancer §4.4, step 5]
const MOST_CORRECTION: i64 = 5;

/// Plan of the balancer and the state of its execution.
#[derive(Debug, Default)]
pub(in crate::policies::sedf) struct PlanState {
    pub(in crate::policies::sedf) plan: Option<Plan>,
    /// Scheduled migrations in order of time.
    pub(in crate::policies::sedf) coming: Vec<(Time, Move)>,
    /// Cost of a quantum of slack for each split vCPU that is on one of its planned CPUs.
    pub(in crate::policies::sedf) costs: Roster<Cost>,
    /// CPU time in ns by which each split vCPU is behind its plan. Negative if the vCPU is ahead of
    /// its plan.
    pub(in crate::policies::sedf) owed: Roster<i64>,
}

impl PlanState {
    /// Drops the state of a vCPU that leaves.
    pub(in crate::policies::sedf) fn leave(&mut self, vcpu: VcpuId) {
        self.coming.retain(|(_, going)| going.vcpu != vcpu);
        self.costs.remove(vcpu);
        self.owed.remove(vcpu);
    }

    /// Returns the time of the next scheduled migration. `None` if no migration is scheduled.
    pub(in crate::policies::sedf) fn next(&self) -> Option<Time> {
        self.coming.first().map(|&(at, _)| at)
    }

    /// Returns the source and target CPUs of all migrations that are due.
    pub(in crate::policies::sedf) fn concerns(&self, now: Time) -> CpuSet {
        let due = self.coming.iter().take_while(|&&(at, _)| at <= now);
        due.flat_map(|&(_, going)| [going.from, going.to]).collect()
    }

    /// Removes and returns the migrations that are due.
    pub(in crate::policies::sedf) fn take_due(&mut self, now: Time) -> Vec<Move> {
        let due = self.coming.partition_point(|&(at, _)| at <= now);
        self.coming.drain(..due).map(|(_, going)| going).collect()
    }

    /// Returns the cost of a quantum of slack for a split vCPU. `None` if the plan does not place
    /// the vCPU on its current CPU.
    pub(in crate::policies::sedf) fn cost(&self, vcpu: VcpuId) -> Option<Cost> {
        self.costs.get(vcpu).copied()
    }

    /// Returns the rate at which a split vCPU should receive slack on `cpu`, in ns per sample (100
    /// ms), corrected for past usage. `None` if the plan does not place the vCPU on `cpu`.
    pub(in crate::policies::sedf) fn pace(&self, split: &Split, cpu: CpuId) -> Option<u64> {
        let piece = split.pieces.iter().find(|piece| piece.cpu == cpu)?;
        let most = i64::try_from(split.rate).unwrap_or(i64::MAX) / MOST_CORRECTION;
        let owed = self.owed.get(split.vcpu).copied().unwrap_or(0);
        let more = (owed / (RUN / SAMPLE).cast_signed()).clamp(-most, most);
        Some(piece.rate.saturating_add_signed(more))
    }

    /// Adds to `owed`, for each split vCPU, the planned CPU time that the vCPU has not received
    /// since the last run of the balancer.
    pub(in crate::policies::sedf) fn note_owed(&mut self, books: &LoadSamples) {
        let Some(plan) = &self.plan else { return };
        for split in &plan.splits {
            let Some(had) = books.had_since_run(split.vcpu) else { continue };
            let due = i64::try_from(split.rate * (RUN / SAMPLE)).unwrap_or(i64::MAX);
            let owed = self.owed.get(split.vcpu).copied().unwrap_or(0);
            let had = i64::try_from(had).unwrap_or(i64::MAX);
            let owed = owed.saturating_add(due.saturating_sub(had)).clamp(-due, due);
            self.owed.insert(split.vcpu, owed);
        }
    }

    /// Schedules the migrations of a split vCPU until the next run of the balancer. The vCPU starts
    /// on the CPU where it is. So each run reverses the order in which the vCPU visits its CPUs.
    /// Returns a migration that is due at once.
    pub(in crate::policies::sedf) fn set_out(
        &mut self,
        split: &Split,
        home: CpuId,
        now: Time,
    ) -> Option<Move> {
        let vcpu = split.vcpu;
        let whole: u128 = split.pieces.iter().map(stay).sum();
        let time = |stay: u128| {
            let ns = u128::from(RUN.ns()) * stay / whole.max(1);
            Span::from_ns(u64::try_from(ns).unwrap_or(u64::MAX))
        };
        // A CPU on which the vCPU would stay for less than a nanosecond is left out.
        let is_long = |piece: &&Piece| !time(stay(piece)).is_zero();
        let mut pieces: Vec<Piece> = split.pieces.iter().filter(is_long).copied().collect();
        if pieces.last().is_some_and(|last| last.cpu == home) {
            pieces.reverse();
        }
        let mut over = 0;
        for pair in pieces.windows(2) {
            over += stay(&pair[0]);
            let (from, to) = (pair[0].cpu, pair[1].cpu);
            self.coming.push((now.after(time(over)), Move { vcpu, from, to }));
        }
        let first = pieces.first().filter(|first| first.cpu != home)?;
        Some(Move { vcpu, from: home, to: first.cpu })
    }
}

/// Returns the time that a split vCPU needs on one of its CPUs to receive its quota there at its
/// planned rate, in relative units.
fn stay(piece: &Piece) -> u128 {
    u128::from(piece.quota) * u128::from(SAMPLE.ns()) / u128::from(piece.rate)
}

#[cfg(test)]
mod tests {
    use slackline_units::DomId;

    use super::*;

    /// Schedules a vCPU that is on CPU 0, with a quota of `first` there and the rest on CPU 1.
    /// Returns the CPU to which the vCPU migrates at once, and the times of its later migrations.
    fn set_out(first: u64) -> (Option<CpuId>, Vec<Time>) {
        let vcpu = VcpuId::new(0, DomId::new(0), 0);
        let rate = SAMPLE.ns() / 2;
        let piece = |cpu, quota| Piece { cpu: CpuId::new(cpu), quota, rate };
        let pieces = alloc::vec![piece(0, first), piece(1, rate - first)];
        let mut planned = PlanState::default();
        let split = Split { vcpu, rate, pieces };
        let at_once = planned.set_out(&split, CpuId::new(0), Time::START);
        (at_once.map(|going| going.to), planned.coming.iter().map(|&(at, _)| at).collect())
    }

    #[test]
    fn split_vcpu_migrates_immediately_from_cpu_with_zero_quota() {
        let [half, least, none] = [SAMPLE.ns() / 4, 1, 0].map(set_out);
        assert_eq!(half, (None, alloc::vec![Time::START + RUN / 2]));
        assert_eq!(least, (None, alloc::vec![Time::START + Span::from_ns(10)]));
        assert_eq!(none, (Some(CpuId::new(1)), Vec::new()));
    }
}
