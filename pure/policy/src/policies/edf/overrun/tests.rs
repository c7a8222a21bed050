//! Tests of debt and its limits, by calls to the policy.

use alloc::vec::Vec;

use proptest::prelude::*;
use slackline_units::{CpuId, Span, Time, VcpuId};

use crate::policies::edf::Edf;
use crate::policies::edf::tests::{by_hand, hard_limit, join, wake};
use crate::{Moment, Pick, Policy};

const CPU: CpuId = CpuId::new(0);
const SLICE: Span = Span::from_ms(8);
const PERIOD: Span = Span::from_ms(100);
/// Part of a slice that the policy may keep back as measurement tolerance.
const TOLERANCE: Span = Span::from_us(3);

/// A vCPU with a hard limit of 8 ms in 100 ms. It is alone on its CPU and never blocks.
struct Lone {
    edf: Edf,
    at: Moment,
    vcpu: VcpuId,
    /// Start of the next period.
    next: Time,
}

impl Lone {
    fn new() -> Lone {
        let (mut edf, mut at) = by_hand(1, &[]);
        let vcpu = join(&mut edf, &mut at, 0, ("8ms", "100ms"));
        wake(&mut edf, &mut at, vcpu);
        Lone { edf, at, vcpu, next: Time::START }
    }

    /// Runs the vCPU for a period in which it is stopped late by `overrun`. Returns the CPU time
    /// received. Without budget the vCPU does not run.
    fn run(&mut self, overrun: Span) -> Span {
        let start = self.next;
        self.next = start.after(PERIOD);
        let ran = match self.edf.pick(&self.at, CPU) {
            Pick::Run { limit, .. } => limit.expect("a pick on budget has a limit") + overrun,
            Pick::Idle => Span::ZERO,
        };
        if !ran.is_zero() {
            self.at.occupy(CPU, self.vcpu);
            self.at.advance(start.after(ran));
            self.edf.charge(&self.at, self.vcpu, ran);
            self.at.vacate(CPU);
        }
        self.at.advance(self.next);
        self.edf.on_timer(&self.at, CPU);
        ran
    }

    fn run_all(&mut self, overrun: Span, periods: usize) -> Vec<Span> {
        (0..periods).map(|_| self.run(overrun)).collect()
    }
}

/// Forty refills of 250 us are forgiven at once, and one more refill in each period.
#[test]
fn edf_hard_limited_vcpu_repays_overrun_beyond_the_forgiven_amount() {
    let mut lone = Lone::new();
    let late = Span::from_ms(5);
    // The bucket of 10 ms forgives two overruns of 5 ms. Of the third overrun it forgives only the
    // amount that has accrued in the meantime.
    let received = lone.run_all(late, 4);
    for received in &received[..3] {
        assert!(*received + TOLERANCE >= SLICE + late, "{received}");
    }
    assert!(received[3] + Span::from_ms(4) < SLICE + late, "{} is not shortened", received[3]);
    let all: Span = lone.run_all(late, 1_000).into_iter().sum();
    let most = (SLICE + Span::from_us(250)) * 1_000 + SLICE * 2;
    assert!(all <= most, "{all} in 1000 periods, at most {most}");
}

/// An overrun of 90 ms is longer than 10 slices by 10 ms. These 10 ms never become debt, and 10 ms
/// of the debt of 80 ms are forgiven.
#[test]
fn edf_overrun_debt_under_hard_limit_never_exceeds_ten_slices() {
    let mut lone = Lone::new();
    lone.run(Span::from_ms(90));
    assert_eq!(lone.run_all(Span::ZERO, 8), [Span::ZERO; 8]);
    let rest = lone.run_all(Span::ZERO, 2);
    assert!(!rest[0].is_zero() && rest[0] <= SLICE, "{}", rest[0]);
    assert!(rest[1] + TOLERANCE >= SLICE, "{}", rest[1]);
}

/// A vCPU that leaves and rejoins continues with its debt and with its used leniency.
#[test]
fn edf_hard_limited_vcpu_that_rejoins_still_owes_its_overrun() {
    let mut lone = Lone::new();
    lone.run(Span::from_ms(20));
    lone.at.leave(lone.vcpu);
    lone.edf.on_leave(&lone.at, lone.vcpu);
    lone.vcpu = join(&mut lone.edf, &mut lone.at, 0, ("8ms", "100ms"));
    wake(&mut lone.edf, &mut lone.at, lone.vcpu);
    let received: Span = lone.run_all(Span::ZERO, 4).into_iter().sum();
    assert!(received <= SLICE * 2, "{received} in four periods, with a debt of 20 ms");
}

/// A vCPU with a longer slice can be forgiven more overrun. If its slice grows, and none of its
/// overrun was forgiven, it owes nothing when it rejoins.
#[test]
fn edf_vcpu_that_grew_its_slice_owes_nothing_when_rejoining() {
    let (mut edf, mut at) = by_hand(1, &[]);
    let vcpu = join(&mut edf, &mut at, 0, ("200us", "10ms"));
    edf.adjust(&at, vcpu, &hard_limit(("8ms", "100ms"))).expect("8 % of a CPU fit");
    at.leave(vcpu);
    edf.on_leave(&at, vcpu);
    let vcpu = join(&mut edf, &mut at, 0, ("8ms", "100ms"));
    wake(&mut edf, &mut at, vcpu);
    let pick = edf.pick(&at, CPU);
    assert!(matches!(pick, Pick::Run { limit: Some(SLICE), .. }), "{pick:?}");
}

proptest! {
    /// In any window of whole periods, the CPU time of a vCPU is bounded. It is at most the sum of
    /// its slices, a refill per period, the 40 refills of the bucket, and 10 slices of debt.
    #[test]
    fn edf_overrun_under_hard_limit_is_bounded_in_any_interval(
        overruns in prop::collection::vec(0..80_000_u64, 300),
        calm in 0..100_u64,
    ) {
        let mut lone = Lone::new();
        let overrun = |us: u64| Span::from_us(if us % 100 < calm { us / 1_000 } else { us });
        let received: Vec<Span> =
            overruns.into_iter().map(|us| lone.run(overrun(us))).collect();
        let refill = Span::from_us(250);
        let most = |periods: usize| {
            (SLICE + refill) * periods as u64 + refill * 40 + SLICE * 10
        };
        for start in 0..received.len() {
            let mut sum = Span::ZERO;
            for (index, &received) in received[start..].iter().enumerate() {
                sum += received;
                prop_assert!(sum <= most(index + 1), "{sum} in {} periods", index + 1);
            }
        }
    }
}
